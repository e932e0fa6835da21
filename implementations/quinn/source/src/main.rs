//! quinn as an endpoint of the QUIC Interop Runner's contract: one program, both roles, everything from the environment.

mod client;
mod congestion;
mod files;
mod qlog;
mod server;
mod tls;

use std::env;
use std::process::exit;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

/// What the endpoint is asked to do.
pub struct Settings {
    /// Wire name of the test case.
    pub case: String,
    /// ALPN protocol that the test case speaks.
    pub alpn: &'static [u8],
    pub congestion: congestion::Congestion,
    pub qlog: qlog::Directory,
}

impl Settings {
    fn from_environment() -> Result<Self> {
        let case = env::var("TESTCASE").context("TESTCASE is not set")?;
        Ok(Self {
            alpn: if case == "http3" { b"h3" } else { b"hq-interop" },
            case,
            congestion: congestion::Congestion::from_environment(),
            qlog: qlog::Directory::from_environment(),
        })
    }

    /// The library's own transport parameters, but for what the run asks for.
    fn transport(&self, connection: &str) -> quinn::TransportConfig {
        let mut transport = quinn::TransportConfig::default();
        transport.congestion_controller_factory(self.congestion.factory());
        transport.qlog_stream(self.qlog.stream(connection));
        transport
    }
}

async fn run(settings: &Settings) -> Result<()> {
    match env::var("ROLE").as_deref() {
        Ok("client") => client::run(settings).await,
        Ok("server") => server::run(settings).await,
        _ => bail!("ROLE must be client or server"),
    }
}

#[tokio::main]
async fn main() {
    let settings = match Settings::from_environment() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("{error:#}");
            exit(1);
        }
    };
    println!("applied: {}", settings.congestion);
    let mut terminate = signal(SignalKind::terminate()).expect("a handler for SIGTERM");
    let outcome = tokio::select! {
        outcome = run(&settings) => outcome,
        // Only a server is meant to run until it is told to stop.
        _ = terminate.recv() => match settings.qlog.role() {
            "server" => Ok(()),
            _ => Err(anyhow::anyhow!("terminated before all files were there")),
        },
    };
    settings.qlog.flush();
    if let Err(error) = outcome {
        eprintln!("{error:#}");
        exit(1);
    }
}
