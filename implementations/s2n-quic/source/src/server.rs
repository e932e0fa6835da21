//! s2n-quic's server side: HTTP/0.9 over `/www`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, anyhow, bail};
use endpoint::server::{PORT, REFUSED, answer_hq};
use endpoint::{Settings, tls};
use s2n_quic::provider::congestion_controller::Provider;
use s2n_quic::provider::endpoint_limits::{ConnectionAttempt, Limiter, Outcome};
use s2n_quic::provider::tls::rustls;
use s2n_quic::{Connection, Server};

use crate::settings::{self, Controllers};

/// Serve until the program ends.
pub async fn run(settings: &Settings) -> Result<()> {
    // One socket for both families, unless the host has no IPv6.
    let mut server = listen(settings, SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)))
        .or_else(|_| listen(settings, SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT))))
        .context("UDP port 443")?;
    while let Some(connection) = server.accept().await {
        tokio::spawn(async move {
            if let Err(error) = serve(connection).await {
                eprintln!("connection: {error:#}");
            }
        });
    }
    bail!("the endpoint was closed")
}

fn listen(settings: &Settings, local: SocketAddr) -> Result<Server> {
    match Controllers::from(&settings.congestion) {
        Controllers::Cubic(cubic) => start(settings, local, cubic),
        Controllers::Bbr(bbr) => start(settings, local, bbr),
    }
}

fn start<C: Provider>(settings: &Settings, local: SocketAddr, controller: C) -> Result<Server> {
    Server::builder()
        .with_tls(rustls::Server::from(tls::server(settings.alpn)?))?
        .with_io(settings::socket(local)?)?
        .with_endpoint_limits(Validation { retry: settings.case == "retry" })?
        .with_congestion_controller(controller)?
        .start()
        .map_err(|error| anyhow!("{error}"))
}

/// Decides whether a client without a token must prove its address with a Retry.
struct Validation {
    retry: bool,
}

impl Limiter for Validation {
    fn on_connection_attempt(&mut self, _: &ConnectionAttempt) -> Outcome {
        if self.retry { Outcome::retry() } else { Outcome::allow() }
    }
}

async fn serve(mut connection: Connection) -> Result<()> {
    while let Some(stream) = connection.accept_bidirectional_stream().await? {
        let (receive, mut send) = stream.split();
        tokio::spawn(async move {
            let answered = answer_hq(&mut send, receive).await;
            if let Err(error) = answered.and_then(|()| Ok(send.finish()?)) {
                eprintln!("request: {error:#}");
                let _ = send.reset(REFUSED.into());
            }
        });
    }
    Ok(())
}
