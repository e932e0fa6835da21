//! The gateway box: accepts streams, and connects each to the server that its header names.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connecting, Endpoint, RecvStream, SendStream, ServerConfig, TokioRuntime};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::transport::{NO_ERROR, Settings};
use crate::{PORT, header, ready, relay, trust};

/// Time limit for a stream's header, and for the TCP handshake with a server.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn endpoint() -> Result<(Endpoint, ServerConfig)> {
    let crypto = QuicServerConfig::try_from(trust::server()?)?;
    let config = ServerConfig::with_crypto(Arc::new(crypto));
    let socket = UdpSocket::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)))?;
    let endpoint = Endpoint::new(trust::lasting()?, Some(config.clone()), socket, Arc::new(TokioRuntime))?;
    Ok((endpoint, config))
}

/// Serve terminals.
pub async fn run(endpoint: &Endpoint, config: &ServerConfig, settings: &Settings) -> Result<()> {
    let pinned = Arc::new(trust::certificate("terminal")?);
    ready()?;
    while let Some(incoming) = endpoint.accept().await {
        let mut config = config.clone();
        config.transport_config(Arc::new(settings.transport(&incoming.orig_dst_cid().to_string())));
        let pinned = pinned.clone();
        match incoming.accept_with(Arc::new(config)) {
            Ok(connecting) => {
                tokio::spawn(async move {
                    if let Err(error) = serve(connecting, &pinned).await {
                        eprintln!("terminal: {error:#}");
                    }
                });
            }
            Err(error) => eprintln!("terminal refused: {error}"),
        }
    }
    bail!("the endpoint was closed")
}

async fn serve(connecting: Connecting, pinned: &trust::Certificate) -> Result<()> {
    let terminal = connecting.await?;
    if let Err(error) = trust::require(&terminal, pinned) {
        terminal.close(NO_ERROR, b"");
        return Err(error);
    }
    loop {
        let (send, receive) = terminal.accept_bi().await?;
        tokio::spawn(async move {
            if let Err(error) = answer(send, receive).await {
                eprintln!("stream: {error:#}");
            }
        });
    }
}

async fn answer(send: SendStream, mut receive: RecvStream) -> Result<()> {
    // This future ends with STOP_SENDING or with the tunnel. Then the server's answer is no longer needed.
    let gone = send.stopped();
    let connected = tokio::select! {
        connected = connect(&mut receive) => connected,
        _ = gone => Err(anyhow::anyhow!("the terminal has gone")),
    };
    match connected {
        Ok(server) => relay::join(server, send, receive).await,
        Err(error) => {
            relay::abort(None, send, receive);
            Err(error)
        }
    }
}

async fn connect(receive: &mut RecvStream) -> Result<TcpStream> {
    let destination = timeout(PATIENCE, header::read(receive)).await.context("no header in time")??;
    ensure!(is_beyond(destination.ip()), "{destination} is no destination: it is the gateway's own");
    let connected = timeout(PATIENCE, TcpStream::connect(destination)).await;
    connected.map_err(anyhow::Error::from).and_then(|done| Ok(done?)).with_context(|| destination.to_string())
}

/// Whether a terminal may connect to this address. Addresses that only the gateway's host can reach are forbidden.
fn is_beyond(address: IpAddr) -> bool {
    let here = match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let address = address.to_canonical();
    !(here || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}
