//! quiche as an endpoint of the QUIC Interop Runner: one program for both roles, configured by the environment.

mod client;
mod fields;
mod net;
mod requests;
mod responses;
mod server;
mod settings;

use std::env;
use std::os::unix::net::UnixStream;
use std::process::exit;

use anyhow::{Result, bail};
use signal_hook::consts::SIGTERM;

use crate::settings::Settings;

fn run() -> Result<()> {
    let settings = Settings::from_environment()?;
    println!("applied: {}", settings.congestion);
    let (terminated, write) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGTERM, write)?;
    match env::var("ROLE").as_deref() {
        Ok("client") => client::run(&settings, terminated),
        Ok("server") => server::run(&settings, terminated),
        _ => bail!("ROLE must be client or server"),
    }
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{error:#}");
        exit(1);
    }
}
