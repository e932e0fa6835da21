//! Congestion controller and initial window, as the run asks for them.

use std::env;
use std::fmt;

use quiche::CongestionControlAlgorithm;

/// quiche's own initial congestion window in packets.
const DEFAULT_WINDOW: usize = 10;

pub struct Congestion {
    algorithm: CongestionControlAlgorithm,
    /// Initial congestion window in packets.
    window: usize,
}

impl Congestion {
    /// From CCA and IW; what quiche can't do is left at its default.
    pub fn from_environment() -> Self {
        let algorithm = match env::var("CCA").as_deref() {
            Ok("newreno" | "reno") => CongestionControlAlgorithm::Reno,
            // quiche has one BBR, and takes either name for it.
            Ok("bbr" | "bbr2") => CongestionControlAlgorithm::Bbr2Gcongestion,
            _ => CongestionControlAlgorithm::CUBIC,
        };
        let asked = env::var("IW").ok().and_then(|packets| packets.parse().ok());
        Self { algorithm, window: asked.filter(|packets| (1..=1000).contains(packets)).unwrap_or(DEFAULT_WINDOW) }
    }

    pub fn apply(&self, config: &mut quiche::Config) {
        config.set_cc_algorithm(self.algorithm);
        config.set_initial_congestion_window_packets(self.window);
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.algorithm {
            CongestionControlAlgorithm::Reno => "newreno",
            CongestionControlAlgorithm::CUBIC => "cubic",
            CongestionControlAlgorithm::Bbr2Gcongestion => "bbr2",
        };
        write!(formatter, "cca={name} iw={}", self.window)
    }
}
