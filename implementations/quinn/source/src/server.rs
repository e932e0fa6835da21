//! quinn's server side: HTTP/0.9 or HTTP/3 over `/www`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use endpoint::server::{PORT, REFUSED, answer_hq};
use endpoint::{Settings, tls};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connecting, Connection, Endpoint, ServerConfig};

use crate::{http3, settings};

/// Serve until the program ends.
pub async fn run(settings: &Settings) -> Result<()> {
    let crypto = QuicServerConfig::with_initial(Arc::new(tls::server(settings.alpn)?), tls::initial_suite())?;
    let config = ServerConfig::with_crypto(Arc::new(crypto));
    // One socket for both families, unless the host has no IPv6.
    let endpoint = Endpoint::server(config.clone(), SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)))
        .or_else(|_| Endpoint::server(config.clone(), SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT))))
        .context("UDP port 443")?;
    let http3 = settings.alpn == b"h3";
    while let Some(incoming) = endpoint.accept().await {
        if settings.case == "retry" && incoming.may_retry() && !incoming.remote_address_validated() {
            incoming.retry()?;
            continue;
        }
        let mut config = config.clone();
        let transport = settings::transport(settings, &incoming.orig_dst_cid().to_string());
        config.transport_config(Arc::new(transport));
        match incoming.accept_with(Arc::new(config)) {
            Ok(connecting) => {
                tokio::spawn(async move {
                    if let Err(error) = serve(connecting, http3).await {
                        eprintln!("connection: {error:#}");
                    }
                });
            }
            Err(error) => eprintln!("connection refused: {error}"),
        }
    }
    bail!("the endpoint was closed")
}

async fn serve(connecting: Connecting, http3: bool) -> Result<()> {
    if http3 {
        // Wait for the complete handshake. With half of a ClientHello, the number of control streams that h3 may open
        // is not known, and quinn doesn't wake a task that waits for a stream at that time.
        return http3::serve(connecting.await?).await;
    }
    // Responses to 0-RTT requests are sent before the handshake is complete.
    match connecting.into_0rtt() {
        Ok((connection, _)) => serve_hq(connection).await,
        Err(_) => unreachable!("a server can always send 0.5-RTT data"),
    }
}

async fn serve_hq(connection: Connection) -> Result<()> {
    loop {
        let (mut send, receive) = match connection.accept_bi().await {
            Ok(streams) => streams,
            Err(quinn::ConnectionError::ApplicationClosed(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        tokio::spawn(async move {
            let answered = answer_hq(&mut send, receive).await;
            if let Err(error) = answered.and_then(|()| Ok(send.finish()?)) {
                eprintln!("request: {error:#}");
                let _ = send.reset(REFUSED.into());
            }
        });
    }
}
