//! The requested settings as a configuration of quinn.

use std::sync::Arc;

use endpoint::congestion::{Congestion, Controller};
use endpoint::{Library, Settings};
use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::{AckFrequencyConfig, QlogConfig, QlogStream, TransportConfig};

/// quinn's datagrams before path MTU discovery, in bytes; its own initial windows are multiples of it.
const DATAGRAM: u64 = 1200;

pub const LIBRARY: Library = Library {
    controllers: &[
        Controller { name: "cubic", window: 10 },
        Controller { name: "newreno", window: 10 },
        Controller { name: "bbr", window: 200 },
    ],
    ack_frequency: true,
};

/// The library's default transport parameters, changed as the run requests.
pub fn transport(settings: &Settings, connection: &str) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.congestion_controller_factory(controller(&settings.congestion));
    transport.qlog_stream(qlog(settings, connection));
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
        "bbr" => {
            let mut config = BbrConfig::default();
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

fn qlog(settings: &Settings, connection: &str) -> Option<QlogStream> {
    let mut config = QlogConfig::default();
    config.writer(Box::new(settings.qlog.writer(connection)?)).title(Some("quinn".to_owned()));
    config.into_stream()
}
