//! The requested settings as quiche's configuration and logs.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::PathBuf;

use anyhow::{Context, Result};
use endpoint::congestion::{Congestion, Controller};
use quiche::CongestionControlAlgorithm;

use crate::net::LARGEST_SENT;

/// The first controller is quiche's default.
const CONTROLLERS: [Controller; 3] = [
    Controller { name: "cubic", window: 10 },
    Controller { name: "newreno", window: 10 },
    Controller { name: "bbr2", window: 10 },
];

const CHAIN: &str = "/certs/cert.pem";
const KEY: &str = "/certs/priv.key";
const AUTHORITY: &str = "/certs/ca.pem";

// The library has no defaults for these values. They are the defaults of quiche's own tools, quiche-client and
// quiche-server.
const IDLE_TIMEOUT_MS: u64 = 30_000;
const CONNECTION_WINDOW: u64 = 10_000_000;
const STREAM_WINDOW: u64 = 1_000_000;
const STREAMS: u64 = 100;

/// An unknown version, reserved for tests of version negotiation (RFC 9000 §15).
const UNKNOWN_VERSION: u32 = 0xbaba_baba;

pub struct Settings {
    /// Wire name of the test case.
    pub case: String,
    /// Whether the test case uses HTTP/3 instead of HTTP/0.9.
    pub http3: bool,
    pub congestion: Congestion,
    key_log: Option<File>,
    qlog: Option<PathBuf>,
}

impl Settings {
    pub fn from_environment() -> Result<Self> {
        let case = env::var("TESTCASE").context("TESTCASE is not set")?;
        let path = |name| env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let key_log = match path("SSLKEYLOGFILE") {
            Some(path) => Some(append(&path).with_context(|| path.display().to_string())?),
            None => None,
        };
        Ok(Self {
            http3: case == "http3",
            case,
            congestion: Congestion::from_environment(&CONTROLLERS),
            key_log,
            qlog: path("QLOGDIR"),
        })
    }

    pub fn client(&self) -> Result<quiche::Config> {
        let version = if self.case == "versionnegotiation" { UNKNOWN_VERSION } else { quiche::PROTOCOL_VERSION };
        let mut config = self.both(version)?;
        config.verify_peer(true);
        config.load_verify_locations_from_file(AUTHORITY).context(AUTHORITY)?;
        if self.case == "zerortt" {
            config.enable_early_data();
        }
        Ok(config)
    }

    pub fn server(&self) -> Result<quiche::Config> {
        let mut config = self.both(quiche::PROTOCOL_VERSION)?;
        config.load_cert_chain_from_pem_file(CHAIN).context(CHAIN)?;
        config.load_priv_key_from_pem_file(KEY).context(KEY)?;
        config.enable_early_data();
        Ok(config)
    }

    fn both(&self, version: u32) -> Result<quiche::Config> {
        let mut config = quiche::Config::new(version)?;
        config.set_application_protos(&[if self.http3 { b"h3" } else { b"hq-interop" }])?;
        config.set_max_idle_timeout(IDLE_TIMEOUT_MS);
        config.set_max_send_udp_payload_size(LARGEST_SENT);
        config.set_initial_max_data(CONNECTION_WINDOW);
        config.set_initial_max_stream_data_bidi_local(STREAM_WINDOW);
        config.set_initial_max_stream_data_bidi_remote(STREAM_WINDOW);
        config.set_initial_max_stream_data_uni(STREAM_WINDOW);
        config.set_initial_max_streams_bidi(STREAMS);
        config.set_initial_max_streams_uni(STREAMS);
        config.set_cc_algorithm(match self.congestion.controller {
            "newreno" => CongestionControlAlgorithm::Reno,
            "bbr2" => CongestionControlAlgorithm::Bbr2Gcongestion,
            _ => CongestionControlAlgorithm::CUBIC,
        });
        config.set_initial_congestion_window_packets(self.congestion.window as usize);
        if self.key_log.is_some() {
            config.log_keys();
        }
        Ok(config)
    }

    /// Attach key log and qlog to a new connection. Both are complete when the connection is dropped.
    pub fn log(&self, connection: &mut quiche::Connection, name: &str) -> Result<()> {
        if let Some(file) = &self.key_log {
            connection.set_keylog(Box::new(file.try_clone()?));
        }
        if let Some(directory) = &self.qlog {
            let role = if connection.is_server() { "server" } else { "client" };
            let path = directory.join(format!("{name}_{role}.sqlog"));
            let file = File::create(&path).with_context(|| path.display().to_string())?;
            connection.set_qlog(Box::new(BufWriter::new(file)), format!("quiche {role}"), String::new());
        }
        Ok(())
    }
}

fn append(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}
