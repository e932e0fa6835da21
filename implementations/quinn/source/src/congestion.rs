//! Congestion controller and initial window, as the run asks for them.

use std::env;
use std::fmt;
use std::sync::Arc;

use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};

/// quinn's datagrams before path MTU discovery, in bytes; its own initial windows are multiples of it.
const DATAGRAM: u64 = 1200;

#[derive(Clone, Copy)]
enum Controller {
    Cubic,
    NewReno,
    Bbr,
}

pub struct Congestion {
    controller: Controller,
    /// Initial congestion window in packets.
    window: u64,
}

impl Congestion {
    /// From CCA and IW; what quinn can't do is left at its default.
    pub fn from_environment() -> Self {
        let controller = match env::var("CCA").as_deref() {
            Ok("newreno" | "reno") => Controller::NewReno,
            Ok("bbr") => Controller::Bbr,
            _ => Controller::Cubic,
        };
        let asked = env::var("IW").ok().and_then(|packets| packets.parse().ok());
        let default = match controller {
            Controller::Cubic | Controller::NewReno => 10,
            Controller::Bbr => 200,
        };
        Self { controller, window: asked.filter(|packets| (1..=1000).contains(packets)).unwrap_or(default) }
    }

    pub fn factory(&self) -> Arc<dyn ControllerFactory + Send + Sync> {
        let bytes = self.window * DATAGRAM;
        match self.controller {
            Controller::Cubic => {
                let mut config = CubicConfig::default();
                config.initial_window(bytes);
                Arc::new(config)
            }
            Controller::NewReno => {
                let mut config = NewRenoConfig::default();
                config.initial_window(bytes);
                Arc::new(config)
            }
            Controller::Bbr => {
                let mut config = BbrConfig::default();
                config.initial_window(bytes);
                Arc::new(config)
            }
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.controller {
            Controller::Cubic => "cubic",
            Controller::NewReno => "newreno",
            Controller::Bbr => "bbr",
        };
        write!(formatter, "cca={name} iw={}", self.window)
    }
}
