//! The client: downloads every URL of REQUESTS in the way that the test case requires, with any QUIC library.

use std::env;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::slice;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Uri;
use tokio::io::AsyncRead;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::files;

const TICKET_TIMEOUT: Duration = Duration::from_secs(10);

/// The client of a QUIC library. All its connections go to the server of the URLs.
#[expect(async_fn_in_trait, reason = "one task drives the client")]
pub trait Client {
    type Connection: Connection;

    /// A new connection whose handshake is complete.
    async fn connect(&mut self) -> Result<Self::Connection>;

    /// A resumed connection that may send before its handshake is complete.
    async fn connect_early(&mut self) -> Result<Self::Connection> {
        bail!("this library has no 0-RTT")
    }

    /// Returns when a session ticket has arrived since the last call.
    async fn ticket(&self) -> Result<()> {
        bail!("this library does not resume sessions")
    }
}

#[expect(async_fn_in_trait, reason = "one task drives the client")]
pub trait Connection {
    type Response: AsyncRead + Unpin + Send + 'static;

    /// Open a stream, write the request and end the stream. The response arrives later.
    async fn request(&self, line: &str) -> Result<Self::Response>;

    /// Whether the server refused 0-RTT. This is known when the handshake is complete.
    async fn early_data_refused(&self) -> bool {
        false
    }

    /// Update the keys once, as early as RFC 9001 §6.1 allows: after the handshake is confirmed.
    async fn update_keys(&self) -> Result<()> {
        bail!("this library updates keys only by itself")
    }

    /// Fetch all URLs over HTTP/3 and close the connection.
    async fn fetch_h3(&self, _urls: &[Uri]) -> Result<()> {
        bail!("this library has no HTTP/3")
    }

    fn close(&self);
}

/// The URLs of REQUESTS. An error when there is none.
pub fn requests() -> Result<Vec<Uri>> {
    let text = env::var("REQUESTS").context("REQUESTS is not set")?;
    let urls: Vec<Uri> =
        text.split_whitespace().map(|url| url.parse().with_context(|| url.to_owned())).collect::<Result<_>>()?;
    ensure!(!urls.is_empty(), "REQUESTS is empty");
    Ok(urls)
}

/// The server of a URL.
pub struct Target {
    /// Name of the server, for SNI.
    pub name: String,
    pub server: SocketAddr,
    /// Any address of the same family, for the client's socket.
    pub local: SocketAddr,
}

impl Target {
    pub async fn of(url: &Uri) -> Result<Self> {
        let name = url.host().context("a URL has no host")?.to_owned();
        let server = tokio::net::lookup_host((name.as_str(), url.port_u16().unwrap_or(443)))
            .await?
            .next()
            .with_context(|| format!("no address for {name}"))?;
        let any = if server.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        Ok(Self { name, server, local: SocketAddr::new(any, 0) })
    }
}

/// Fetch all URLs in the way that the test case requires.
pub async fn fetch_all(client: &mut impl Client, case: &str, urls: &[Uri]) -> Result<()> {
    match case {
        "http3" => client.connect().await?.fetch_h3(urls).await,
        "multiconnect" => {
            for url in urls {
                fetch(&client.connect().await?, slice::from_ref(url)).await?;
            }
            Ok(())
        }
        "resumption" | "zerortt" => {
            let (first, rest) = urls.split_first().context("REQUESTS is empty")?;
            ensure!(!rest.is_empty(), "a resumed connection needs a second URL");
            let connection = client.connect().await?;
            fetch_open(&connection, slice::from_ref(first)).await?;
            timeout(TICKET_TIMEOUT, client.ticket()).await.context("no session ticket in 10 s")??;
            connection.close();
            if case == "zerortt" {
                fetch_early(client, rest).await
            } else {
                fetch(&client.connect().await?, rest).await
            }
        }
        "keyupdate" => {
            let connection = client.connect().await?;
            tokio::try_join!(fetch_open(&connection, urls), connection.update_keys())?;
            connection.close();
            Ok(())
        }
        _ => fetch(&client.connect().await?, urls).await,
    }
}

/// Fetch all URLs at once, and close the connection.
async fn fetch(connection: &impl Connection, urls: &[Uri]) -> Result<()> {
    fetch_open(connection, urls).await?;
    connection.close();
    Ok(())
}

/// Fetch all URLs with requests in 0-RTT. When the server refuses 0-RTT, all requests are sent again in 1-RTT.
async fn fetch_early(client: &mut impl Client, urls: &[Uri]) -> Result<()> {
    let connection = client.connect_early().await?;
    let early = fetch_open(&connection, urls).await;
    if connection.early_data_refused().await {
        fetch_open(&connection, urls).await?;
    } else {
        early?;
    }
    connection.close();
    Ok(())
}

async fn fetch_open(connection: &impl Connection, urls: &[Uri]) -> Result<()> {
    let mut fetches = JoinSet::new();
    for url in urls {
        let path = url.path().to_owned();
        // The requests are sent one after the other in this task. A request in a task of its own would start too late
        // for 0-RTT.
        let response = connection.request(&format!("GET {path}\r\n")).await?;
        fetches.spawn(async move { save(response, &path).await.with_context(|| path) });
    }
    all(fetches).await
}

async fn save(response: impl AsyncRead + Unpin, path: &str) -> Result<()> {
    Ok(files::receive(response, files::create_received(path)?).await?)
}

/// Wait for all downloads. Returns early with the first error.
pub async fn all(mut fetches: JoinSet<Result<()>>) -> Result<()> {
    while let Some(outcome) = fetches.join_next().await {
        outcome??;
    }
    Ok(())
}
