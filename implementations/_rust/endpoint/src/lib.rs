//! The common parts of the Rust endpoints: the contract of the QUIC Interop Runner, without any QUIC library.
//!
//! A stack adds a `Client`, an accept loop and its congestion controllers.

pub mod client;
pub mod congestion;
pub mod files;
pub mod qlog;
pub mod server;
pub mod tls;

use std::env;
use std::process::exit;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use congestion::{Congestion, Controller};

/// The settings of the endpoint, from its environment.
pub struct Settings {
    pub role: Role,
    /// Wire name of the test case.
    pub case: String,
    /// ALPN protocol of the test case.
    pub alpn: &'static [u8],
    pub congestion: Congestion,
    /// Requested ack-eliciting packets per ACK. None: not requested, or the library can't request it from its peer.
    pub ack_frequency: Option<u32>,
    pub qlog: qlog::Directory,
}

/// The optional abilities of a QUIC library.
pub struct Library {
    /// Its congestion controllers; the first is its default.
    pub controllers: &'static [Controller],
    /// Whether it can request an ACK frequency from its peer (draft-ietf-quic-ack-frequency).
    pub ack_frequency: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

impl Settings {
    fn from_environment(library: &Library) -> Result<Self> {
        let role = match env::var("ROLE").as_deref() {
            Ok("client") => Role::Client,
            Ok("server") => Role::Server,
            _ => bail!("ROLE must be client or server"),
        };
        let case = env::var("TESTCASE").context("TESTCASE is not set")?;
        Ok(Self {
            role,
            alpn: if case == "http3" { b"h3" } else { b"hq-interop" },
            case,
            congestion: Congestion::from_environment(library.controllers),
            ack_frequency: env::var("ACK_FREQUENCY").ok().filter(|_| library.ack_frequency).and_then(packets_per_ack),
            qlog: qlog::Directory::from_environment(),
        })
    }
}

fn packets_per_ack(text: String) -> Option<u32> {
    text.parse().ok().filter(|packets| *packets > 0)
}

/// The program: reads the environment, prints the applied values, runs `role` until it ends or SIGTERM arrives, and
/// exits.
pub async fn run(library: Library, role: impl AsyncFnOnce(&Settings) -> Result<()>) -> ! {
    let settings = match Settings::from_environment(&library) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("{error:#}");
            exit(1);
        }
    };
    let ack = settings.ack_frequency.map(|packets| format!(" ack={packets}")).unwrap_or_default();
    println!("applied: {}{ack}", settings.congestion);
    let mut terminate = signal(SignalKind::terminate()).expect("a handler for SIGTERM");
    let outcome = tokio::select! {
        outcome = role(&settings) => outcome,
        // SIGTERM is the normal end of a server, but a failure of a client.
        _ = terminate.recv() => match settings.role {
            Role::Server => Ok(()),
            Role::Client => Err(anyhow::anyhow!("terminated before all files were there")),
        },
    };
    settings.qlog.flush();
    if let Err(error) = outcome {
        eprintln!("{error:#}");
        exit(1);
    }
    exit(0)
}
