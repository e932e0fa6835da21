//! msquic as an endpoint of the QUIC Interop Runner: one program for both roles, configured by the environment.

mod client;
mod keylog;
mod server;
mod settings;

use std::env;
use std::io::{Write, stdout};

use anyhow::{Result, bail};

use crate::settings::Settings;

fn run() -> Result<()> {
    let settings = Settings::from_environment()?;
    println!("applied: {}", settings.congestion);
    match env::var("ROLE").as_deref() {
        Ok("client") => client::run(&settings),
        Ok("server") => server::run(&settings),
        _ => bail!("ROLE must be client or server"),
    }
}

/// End the program without the library's clean-up, which waits for connections and has a race with the library's own
/// threads.
fn leave(code: i32) -> ! {
    let _ = stdout().flush();
    unsafe { libc::_exit(code) }
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{error:#}");
        leave(1);
    }
    leave(0)
}
