//! noq's client side: connections, requests, key updates.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use endpoint::client::{self, Target};
use endpoint::{Settings, tls};
use noq::crypto::rustls::QuicClientConfig;
use noq::{ClientConfig, Endpoint, RecvStream, VarInt, ZeroRttAccepted};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::settings;

const NO_ERROR: VarInt = VarInt::from_u32(0);
/// Time in which the client waits for the peer's last packets after it closed. noq's draining period is longer than
/// needed.
const DRAIN: Duration = Duration::from_millis(200);

pub async fn run(settings: &Settings) -> Result<()> {
    let urls = client::requests()?;
    let mut client = Client::new(settings, Target::of(&urls[0]).await?)?;
    let outcome = client::fetch_all(&mut client, &settings.case, &urls).await;
    let _ = timeout(DRAIN, client.endpoint.wait_idle()).await;
    outcome
}

struct Client<'a> {
    settings: &'a Settings,
    endpoint: Endpoint,
    crypto: Arc<QuicClientConfig>,
    tickets: Arc<tls::Tickets>,
    target: Target,
    connections: usize,
}

impl<'a> Client<'a> {
    fn new(settings: &'a Settings, target: Target) -> Result<Self> {
        let (crypto, tickets) = tls::client(settings.alpn, &settings.case)?;
        let crypto = Arc::new(QuicClientConfig::with_initial(Arc::new(crypto), tls::initial_suite())?);
        let endpoint = Endpoint::client(target.local)?;
        Ok(Self { settings, endpoint, crypto, tickets, target, connections: 0 })
    }

    fn start(&mut self) -> Result<noq::Connecting> {
        self.connections += 1;
        let mut config = ClientConfig::new(self.crypto.clone());
        let transport = settings::transport(self.settings, &format!("connection-{}", self.connections));
        config.transport_config(Arc::new(transport));
        Ok(self.endpoint.connect_with(config, self.target.server, &self.target.name)?)
    }
}

impl client::Client for Client<'_> {
    type Connection = Connection;

    async fn connect(&mut self) -> Result<Connection> {
        Ok(Connection::new(self.start()?.await?, None))
    }

    async fn connect_early(&mut self) -> Result<Connection> {
        Ok(match self.start()?.into_0rtt() {
            Ok((connection, accepted)) => Connection::new(connection, Some(accepted)),
            Err(connecting) => Connection::new(connecting.await?, None),
        })
    }

    async fn ticket(&self) -> Result<()> {
        self.tickets.arrived().await;
        Ok(())
    }
}

struct Connection {
    noq: noq::Connection,
    /// Becomes known with the handshake: whether the server accepted 0-RTT. None: no 0-RTT was sent.
    accepted: Mutex<Option<ZeroRttAccepted>>,
}

impl Connection {
    fn new(noq: noq::Connection, accepted: Option<ZeroRttAccepted>) -> Self {
        Self { noq, accepted: Mutex::new(accepted) }
    }
}

impl client::Connection for Connection {
    type Response = RecvStream;

    async fn request(&self, line: &str) -> Result<RecvStream> {
        let (mut send, receive) = self.noq.open_bi().await?;
        send.write_all(line.as_bytes()).await?;
        send.finish()?;
        Ok(receive)
    }

    async fn early_data_refused(&self) -> bool {
        match self.accepted.lock().await.take() {
            Some(accepted) => !accepted.await,
            None => false,
        }
    }

    async fn update_keys(&self) -> Result<()> {
        self.noq.handshake_confirmed().await?;
        self.noq.force_key_update();
        Ok(())
    }

    fn close(&self) {
        self.noq.close(NO_ERROR, b"");
    }
}
