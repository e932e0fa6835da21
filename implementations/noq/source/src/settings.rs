//! The requested settings as a configuration of noq.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use endpoint::congestion::{Congestion, Controller};
use endpoint::qlog::Writer;
use endpoint::{Library, Settings};
use noq::congestion::{Bbr3Config, ControllerFactory, CubicConfig, NewRenoConfig};
use noq::{AckFrequencyConfig, ConnectionId, QlogConfig, QlogFactory, Side, TransportConfig};

/// noq's datagrams before path MTU discovery, in bytes; its own initial windows are multiples of it.
const DATAGRAM: u64 = 1200;

pub const LIBRARY: Library = Library {
    controllers: &[
        Controller { name: "cubic", window: 10 },
        Controller { name: "newreno", window: 10 },
        Controller { name: "bbr3", window: 10 },
    ],
    ack_frequency: true,
};

/// The library's default transport parameters, changed as the run requests.
pub fn transport(settings: &Settings, connection: &str) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(controller(&settings.congestion));
    if let Some(writer) = settings.qlog.writer(connection) {
        transport.qlog_factory(Arc::new(Qlog(writer)));
    }
    if let Some(packets) = settings.ack_frequency {
        let mut acks = AckFrequencyConfig::default();
        // The threshold is the number of packets that are not yet acknowledged at once.
        acks.ack_eliciting_threshold((packets - 1).into());
        transport.ack_frequency_config(Some(acks));
    }
    transport
}

fn controller(congestion: &Congestion) -> Arc<dyn ControllerFactory + Send + Sync> {
    let bytes = congestion.window * DATAGRAM;
    match congestion.controller {
        "newreno" => {
            let mut config = NewRenoConfig::default();
            config.initial_window(bytes);
            Arc::new(config)
        }
        "bbr3" => {
            let mut config = Bbr3Config::default();
            config.initial_window(bytes);
            Arc::new(config)
        }
        _ => {
            let mut config = CubicConfig::default();
            config.initial_window(bytes);
            Arc::new(config)
        }
    }
}

/// The qlog of one connection. noq's own factory is not used, because its files can't be flushed at the end of the
/// program.
struct Qlog(Writer);

impl QlogFactory for Qlog {
    fn for_connection(&self, _: Side, _: SocketAddr, _: ConnectionId, _: Instant) -> Option<QlogConfig> {
        let mut config = QlogConfig::new(Box::new(self.0.clone()));
        config.title(Some("noq".to_owned()));
        Some(config)
    }
}
