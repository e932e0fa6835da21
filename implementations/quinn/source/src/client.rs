//! The client: fetches every URL of REQUESTS in the way that the test case asks for.

use std::env;
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, Bytes};
use http::Uri;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, VarInt};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::files::{self, PIECE};
use crate::{Settings, tls};

const NO_ERROR: VarInt = VarInt::from_u32(0);
const H3_NO_ERROR: VarInt = VarInt::from_u32(0x100);
const TICKET_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to stay for the peer's last packets after closing; the rest of quinn's draining period serves nobody here.
const DRAIN: Duration = Duration::from_millis(200);

type SendRequest = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

pub async fn run(settings: &Settings) -> Result<()> {
    let urls = requests()?;
    let mut client = Client::new(settings, &urls[0]).await?;
    let outcome = client.fetch_all(&urls).await;
    let _ = timeout(DRAIN, client.endpoint.wait_idle()).await;
    outcome
}

fn requests() -> Result<Vec<Uri>> {
    let text = env::var("REQUESTS").context("REQUESTS is not set")?;
    let urls: Vec<Uri> =
        text.split_whitespace().map(|url| url.parse().with_context(|| url.to_owned())).collect::<Result<_>>()?;
    ensure!(!urls.is_empty(), "REQUESTS is empty");
    Ok(urls)
}

struct Client<'a> {
    settings: &'a Settings,
    endpoint: Endpoint,
    crypto: Arc<quinn::crypto::rustls::QuicClientConfig>,
    tickets: Arc<tls::Tickets>,
    server: SocketAddr,
    server_name: String,
    connections: usize,
}

impl<'a> Client<'a> {
    async fn new(settings: &'a Settings, url: &Uri) -> Result<Self> {
        let server_name = url.host().context("a URL has no host")?.to_owned();
        let server = tokio::net::lookup_host((server_name.as_str(), url.port_u16().unwrap_or(443)))
            .await?
            .next()
            .with_context(|| format!("no address for {server_name}"))?;
        let any = if server.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let case = settings.case.as_str();
        let features = tls::ClientFeatures {
            only_chacha20: case == "chacha20",
            resumption: matches!(case, "resumption" | "zerortt"),
            early_data: case == "zerortt",
        };
        let (crypto, tickets) = tls::client(settings.alpn, &features)?;
        let endpoint = Endpoint::client(SocketAddr::new(any, 0))?;
        Ok(Self { settings, endpoint, crypto: Arc::new(crypto), tickets, server, server_name, connections: 0 })
    }

    async fn fetch_all(&mut self, urls: &[Uri]) -> Result<()> {
        match self.settings.case.as_str() {
            "multiconnect" => {
                for url in urls {
                    self.fetch(std::slice::from_ref(url)).await?;
                }
                Ok(())
            }
            "resumption" | "zerortt" => {
                let (first, rest) = urls.split_first().context("REQUESTS is empty")?;
                ensure!(!rest.is_empty(), "a resumed connection needs a second URL");
                let connection = self.connect()?.await?;
                fetch_hq(&connection, std::slice::from_ref(first)).await?;
                timeout(TICKET_TIMEOUT, self.tickets.arrived()).await.context("no session ticket in 10 s")?;
                connection.close(NO_ERROR, b"");
                if self.settings.case == "zerortt" { self.fetch_early(rest).await } else { self.fetch(rest).await }
            }
            _ => self.fetch(urls).await,
        }
    }

    fn connect(&mut self) -> Result<quinn::Connecting> {
        self.connections += 1;
        let mut config = ClientConfig::new(self.crypto.clone());
        config.transport_config(Arc::new(self.settings.transport(&format!("connection-{}", self.connections))));
        Ok(self.endpoint.connect_with(config, self.server, &self.server_name)?)
    }

    /// Fetch all URLs at once over one new connection.
    async fn fetch(&mut self, urls: &[Uri]) -> Result<()> {
        let connection = self.connect()?.await?;
        if self.settings.case == "keyupdate" {
            tokio::spawn(update_keys(connection.clone()));
        }
        if self.settings.alpn == b"h3" {
            fetch_h3(&connection, urls).await?;
        } else {
            fetch_hq(&connection, urls).await?;
            connection.close(NO_ERROR, b"");
        }
        Ok(())
    }

    /// The same, with all requests in 0-RTT; in 1-RTT when the server refuses it.
    async fn fetch_early(&mut self, urls: &[Uri]) -> Result<()> {
        let connection = match self.connect()?.into_0rtt() {
            Ok((connection, accepted)) => {
                let early = fetch_hq(&connection, urls).await;
                if accepted.await {
                    early?;
                } else {
                    fetch_hq(&connection, urls).await?;
                }
                connection
            }
            Err(connecting) => {
                let connection = connecting.await?;
                fetch_hq(&connection, urls).await?;
                connection
            }
        };
        connection.close(NO_ERROR, b"");
        Ok(())
    }
}

/// Update the keys once, as early as RFC 9001, section 6.1 allows: after the handshake is confirmed.
async fn update_keys(connection: Connection) {
    while connection.stats().frame_rx.handshake_done == 0 {
        if connection.close_reason().is_some() {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
    connection.force_key_update();
}

async fn all(mut fetches: JoinSet<Result<()>>) -> Result<()> {
    while let Some(outcome) = fetches.join_next().await {
        outcome??;
    }
    Ok(())
}

async fn fetch_hq(connection: &Connection, urls: &[Uri]) -> Result<()> {
    let mut fetches = JoinSet::new();
    for url in urls {
        let path = url.path().to_owned();
        // One after the other and right here: a request that waited for its task to start would miss 0-RTT.
        let (mut send, receive) = connection.open_bi().await?;
        send.write_all(format!("GET {path}\r\n").as_bytes()).await?;
        send.finish()?;
        fetches.spawn(async move { receive_hq(receive, &path).await.with_context(|| path) });
    }
    all(fetches).await
}

async fn receive_hq(mut stream: RecvStream, path: &str) -> Result<()> {
    let mut file = files::create_received(path)?;
    while let Some(chunk) = stream.read_chunk(PIECE, true).await? {
        file.write_all(&chunk.bytes)?;
    }
    Ok(())
}

async fn fetch_h3(connection: &Connection, urls: &[Uri]) -> Result<()> {
    let (mut driver, sender) = h3::client::new(h3_quinn::Connection::new(connection.clone())).await?;
    let mut fetches = JoinSet::new();
    for url in urls {
        let (sender, url) = (sender.clone(), url.clone());
        fetches.spawn(async move { fetch_file_h3(sender, &url).await.with_context(|| url.to_string()) });
    }
    tokio::select! {
        outcome = all(fetches) => outcome?,
        error = std::future::poll_fn(|context| driver.poll_close(context)) => return Err(error.into()),
    }
    // Before the driver is dropped, which ends its control stream: an error of HTTP/3 (RFC 9114 §6.2.1).
    connection.close(H3_NO_ERROR, b"");
    Ok(())
}

async fn fetch_file_h3(mut sender: SendRequest, url: &Uri) -> Result<()> {
    let mut stream = sender.send_request(http::Request::get(url.clone()).body(())?).await?;
    stream.finish().await?;
    let response = stream.recv_response().await?;
    if response.status() != http::StatusCode::OK {
        bail!("status {}", response.status());
    }
    let mut file = files::create_received(url.path())?;
    while let Some(mut data) = stream.recv_data().await? {
        while data.has_remaining() {
            let length = file.write(data.chunk())?;
            data.advance(length);
        }
    }
    Ok(())
}
