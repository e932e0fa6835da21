//! The congestion controller and the initial window that the run requests.

use std::env;
use std::fmt;

/// The largest value of IW, in packets.
const LARGEST_WINDOW: u64 = 1000;

/// A congestion controller of the library.
#[derive(Clone, Copy)]
pub struct Controller {
    pub name: &'static str,
    /// The library's default initial window with this controller, in packets.
    pub window: u64,
}

/// The applied controller and initial window.
#[derive(Clone, Copy)]
pub struct Congestion {
    pub controller: &'static str,
    /// Initial congestion window in packets.
    pub window: u64,
}

impl Congestion {
    /// Read CCA and IW. An unsupported value is reported on stderr, and the default is used.
    pub fn from_environment(controllers: &[Controller]) -> Self {
        let asked = env::var("CCA").unwrap_or_default();
        let asked = if asked == "reno" { "newreno" } else { &asked };
        let controller = controllers.iter().find(|known| known.name == asked).unwrap_or(&controllers[0]);
        if !asked.is_empty() && asked != controller.name {
            eprintln!("CCA={asked} is not available: {} it is", controller.name);
        }
        let window = match env::var("IW") {
            Ok(text) if !text.is_empty() => packets(&text).unwrap_or_else(|| {
                eprintln!(
                    "IW={text} is not a number of packets from 1 to {LARGEST_WINDOW}: {} it is",
                    controller.window
                );
                controller.window
            }),
            _ => controller.window,
        };
        Self { controller: controller.name, window }
    }
}

fn packets(text: &str) -> Option<u64> {
    text.parse().ok().filter(|packets| (1..=LARGEST_WINDOW).contains(packets))
}

impl fmt::Display for Congestion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cca={} iw={}", self.controller, self.window)
    }
}
