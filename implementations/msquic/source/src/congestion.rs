//! Congestion controller and initial window, as the run asks for them.

use std::env;
use std::fmt;

use msquic::ffi::{
    QUIC_CONGESTION_CONTROL_ALGORITHM_QUIC_CONGESTION_CONTROL_ALGORITHM_BBR as BBR,
    QUIC_CONGESTION_CONTROL_ALGORITHM_QUIC_CONGESTION_CONTROL_ALGORITHM_CUBIC as CUBIC,
};

/// msquic's own initial congestion window in packets.
const DEFAULT_WINDOW: u32 = 10;

pub struct Congestion {
    algorithm: u32,
    /// Initial congestion window in packets.
    window: u32,
}

impl Congestion {
    /// From CCA and IW; what msquic can't do is left at its default.
    pub fn from_environment() -> Self {
        let algorithm = match env::var("CCA").as_deref() {
            Ok("bbr") => BBR,
            _ => CUBIC,
        };
        let asked = env::var("IW").ok().and_then(|packets| packets.parse().ok());
        Self { algorithm, window: asked.filter(|packets| (1..=1000).contains(packets)).unwrap_or(DEFAULT_WINDOW) }
    }

    pub fn apply(&self, settings: msquic::Settings) -> msquic::Settings {
        settings.set_CongestionControlAlgorithm(self.algorithm as u16).set_InitialWindowPackets(self.window)
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.algorithm == BBR { "bbr" } else { "cubic" };
        write!(formatter, "cca={name} iw={}", self.window)
    }
}
