//! The requested settings as a configuration of quinn.

use std::env;
use std::fmt;
use std::fs::File;
use std::io::LineWriter;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use endpoint::congestion::{Congestion, Controller};
use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::{AckFrequencyConfig, QlogConfig, QlogStream, TransportConfig, VarInt};

pub const NO_ERROR: VarInt = VarInt::from_u32(0);

/// quinn's datagrams before path MTU discovery, in bytes; its own initial windows are multiples of it.
const DATAGRAM: u64 = 1200;
const CONTROLLERS: &[Controller] = &[
    Controller { name: "cubic", window: 10 },
    Controller { name: "newreno", window: 10 },
    Controller { name: "bbr", window: 200 },
];
/// Largest number of TCP connections at once.
const MAX_STREAMS: u32 = 40_000;
/// Receive window of a stream in bytes: 84 Mbit/s at 600 ms. quinn's windows don't grow.
const STREAM_WINDOW: u32 = 6 << 20;
/// Receive window of all streams together in bytes: the most data that waits for slow readers.
const CONNECTION_WINDOW: u32 = 48 << 20;
/// After this time without a packet, the other side counts as dead. A PING is sent after a third of this time.
const IDLE: Duration = Duration::from_secs(30);

pub struct Settings {
    congestion: Congestion,
    /// Ack-eliciting packets per ACK, requested from the other side (draft-ietf-quic-ack-frequency-04).
    ack_ratio: Option<u32>,
    max_streams: u32,
    stream_window: u32,
    /// Folder of the qlogs, one for each connection.
    qlog: Option<PathBuf>,
}

impl Settings {
    pub fn from_environment() -> Result<Self> {
        Ok(Self {
            congestion: Congestion::from_environment(CONTROLLERS),
            ack_ratio: number("ACK_RATIO")?,
            max_streams: number("MAX_STREAMS")?.unwrap_or(MAX_STREAMS),
            stream_window: number("STREAM_WINDOW")?.unwrap_or(STREAM_WINDOW),
            qlog: env::var_os("QLOGDIR").filter(|path| !path.is_empty()).map(PathBuf::from),
        })
    }

    /// The transport configuration of one connection. `connection`: the name of its qlog.
    pub fn transport(&self, connection: &str) -> TransportConfig {
        let mut transport = TransportConfig::default();
        transport
            .congestion_controller_factory(self.controller())
            .qlog_stream(self.qlog_stream(connection))
            .max_concurrent_bidi_streams(self.max_streams.into())
            .max_concurrent_uni_streams(0_u32.into())
            .stream_receive_window(self.stream_window.into())
            .receive_window(CONNECTION_WINDOW.into())
            .send_window(CONNECTION_WINDOW.into())
            .max_idle_timeout(Some(IDLE.try_into().expect("it fits into a variable-length integer")))
            .keep_alive_interval(Some(IDLE / 3));
        if let Some(packets) = self.ack_ratio {
            let mut acks = AckFrequencyConfig::default();
            // The threshold is the number of packets that are not yet acknowledged at once.
            acks.ack_eliciting_threshold((packets - 1).into());
            transport.ack_frequency_config(Some(acks));
        }
        transport
    }

    fn controller(&self) -> Arc<dyn ControllerFactory + Send + Sync> {
        let bytes = self.congestion.window * DATAGRAM;
        match self.congestion.controller {
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

    fn qlog_stream(&self, connection: &str) -> Option<QlogStream> {
        let path = self.qlog.as_ref()?.join(format!("{connection}.sqlog"));
        let file = File::create(&path).inspect_err(|error| eprintln!("{}: {error}", path.display())).ok()?;
        let mut config = QlogConfig::default();
        // Written line by line, so that the file is complete when the program ends.
        config.writer(Box::new(LineWriter::new(file))).title(Some("quinn".to_owned()));
        config.into_stream()
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ack_ratio={}", self.congestion, self.ack_ratio.unwrap_or(2))
    }
}

/// The value of a knob that is a number from 1 on; None when it isn't set.
fn number(name: &str) -> Result<Option<u32>> {
    let text = env::var(name).unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    let value = text.parse().ok().filter(|value| *value > 0);
    Ok(Some(value.with_context(|| format!("{name} is '{text}'; it must be a number from 1 on"))?))
}
