//! The requested settings as a configuration of s2n-quic.

use std::io;
use std::net::SocketAddr;

use endpoint::Library;
use endpoint::congestion::{Congestion, Controller};
use s2n_quic::provider::congestion_controller::{Bbr, Cubic, bbr, cubic};
use s2n_quic::provider::io::tokio::Provider as Io;

/// s2n-quic's datagrams before path MTU discovery, in bytes; its own initial windows are multiples of it.
const DATAGRAM: u64 = 1200;

pub const LIBRARY: Library = Library {
    controllers: &[Controller { name: "cubic", window: 10 }, Controller { name: "bbr", window: 10 }],
    ack_frequency: false,
};

/// s2n-quic's congestion controllers are different types, so there is one variant for each.
pub enum Controllers {
    Cubic(Cubic),
    Bbr(Bbr),
}

impl From<&Congestion> for Controllers {
    fn from(congestion: &Congestion) -> Self {
        let bytes = u32::try_from(congestion.window * DATAGRAM).expect("IW is at most 1000");
        match congestion.controller {
            "bbr" => Self::Bbr(bbr::Builder::default().with_initial_congestion_window(bytes).build()),
            _ => Self::Cubic(cubic::Builder::default().with_initial_congestion_window(bytes).build()),
        }
    }
}

/// A socket without segmentation offload: a capture must show each datagram as it crosses the link.
pub fn socket(local: SocketAddr) -> io::Result<Io> {
    Io::builder().with_receive_address(local)?.with_gso_disabled()?.build()
}
