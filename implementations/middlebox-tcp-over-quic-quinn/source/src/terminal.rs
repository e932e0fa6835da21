//! The terminal box: accepts TCP connections in the name of their destinations, and carries each in a stream.

use std::env;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::transport::Settings;
use crate::{PORT, header, ready, relay, trust};

/// TCP port to which TPROXY directs connections (run_box.sh).
const INTERCEPTED: u16 = 8080;
/// Longest time for which an accepted connection waits for the tunnel and for a stream.
const PATIENCE: Duration = Duration::from_secs(15);
/// Shortest and longest wait between attempts to reach the gateway. The wait doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LAST_WAIT: Duration = Duration::from_secs(5);
const BACKLOG: i32 = 4096;

type Tunnel = watch::Receiver<Option<Connection>>;

pub fn endpoint() -> Result<Endpoint> {
    Ok(Endpoint::client(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?)
}

/// Serve TCP clients.
pub async fn run(endpoint: &Endpoint, settings: &Settings) -> Result<()> {
    let listener = listen()?;
    let (up, tunnel) = watch::channel(None);
    tokio::select! {
        outcome = keep_tunnel(endpoint, settings, up) => outcome,
        outcome = accept(listener, tunnel) => outcome,
    }
}

/// A listener for connections to any address. The local address of a connection is its destination (tproxy.rst of the
/// kernel).
fn listen() -> Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_only_v6(false)?;
    // This flag applies to both families.
    socket.set_ip_transparent_v4(true).context("interception needs CAP_NET_ADMIN")?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, INTERCEPTED)).into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(TcpListener::from_std(socket.into())?)
}

/// Open the long-lived connection, and open it again each time it has died.
async fn keep_tunnel(
    endpoint: &Endpoint,
    settings: &Settings,
    tunnel: watch::Sender<Option<Connection>>,
) -> Result<()> {
    let gateway: SocketAddr = SocketAddr::new(env::var("GATEWAY_ADDRESS").context("GATEWAY_ADDRESS")?.parse()?, PORT);
    let crypto = Arc::new(QuicClientConfig::try_from(trust::client()?)?);
    let pinned = trust::certificate("gateway")?;
    let mut wait = FIRST_WAIT;
    for attempt in 1.. {
        let mut config = ClientConfig::new(crypto.clone());
        config.transport_config(Arc::new(settings.transport(&format!("tunnel-{attempt}"))));
        let reason = match connect(endpoint, config, gateway, &pinned).await {
            Ok(connection) => {
                wait = FIRST_WAIT;
                tunnel.send_replace(Some(connection.clone()));
                ready()?;
                let reason = connection.closed().await.into();
                tunnel.send_replace(None);
                reason
            }
            Err(error) => error,
        };
        eprintln!("no tunnel: {reason:#}; again in {wait:?}");
        sleep(wait).await;
        wait = LAST_WAIT.min(2 * wait);
    }
    unreachable!("attempts don't end")
}

async fn connect(
    endpoint: &Endpoint,
    config: ClientConfig,
    gateway: SocketAddr,
    pinned: &trust::Certificate,
) -> Result<Connection> {
    let connection = endpoint.connect_with(config, gateway, "gateway")?.await?;
    trust::require(&connection, pinned)?;
    Ok(connection)
}

async fn accept(listener: TcpListener, tunnel: Tunnel) -> Result<()> {
    loop {
        let (client, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            // The client closed too early, or all descriptors are used. Both are temporary.
            Err(error) => {
                eprintln!("accept: {error}");
                sleep(FIRST_WAIT).await;
                continue;
            }
        };
        let tunnel = tunnel.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(client, tunnel).await {
                eprintln!("{from}: {error:#}");
            }
        });
    }
}

async fn serve(client: TcpStream, tunnel: Tunnel) -> Result<()> {
    match open_stream(&client, tunnel).await {
        Ok((send, receive)) => relay::join(client, send, receive).await,
        Err(error) => {
            let _ = client.set_zero_linger();
            Err(error)
        }
    }
}

/// Open a stream to the client's destination.
async fn open_stream(client: &TcpStream, mut tunnel: Tunnel) -> Result<(SendStream, RecvStream)> {
    let local = client.local_addr()?;
    let destination = SocketAddr::new(local.ip().to_canonical(), local.port());
    let opened = timeout(PATIENCE, async {
        let connection = tunnel.wait_for(Option::is_some).await?.clone().context("a tunnel")?;
        let (mut send, receive) = connection.open_bi().await?;
        send.write_all(&header::of(destination)).await?;
        Ok((send, receive))
    });
    opened.await.context("no tunnel, or no stream of it, in time")?
}
