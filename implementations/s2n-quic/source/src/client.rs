//! s2n-quic's client side: connections and requests.

use std::time::Duration;

use anyhow::{Result, anyhow};
use bytes::Bytes;
use endpoint::client::{self, Target};
use endpoint::{Settings, tls};
use s2n_quic::client::Connect;
use s2n_quic::connection::Handle;
use s2n_quic::provider::congestion_controller::Provider;
use s2n_quic::provider::tls::rustls;
use s2n_quic::stream::ReceiveStream;
use tokio::time::timeout;

use crate::settings::{self, Controllers};

const NO_ERROR: u32 = 0;
/// Time in which the client waits for the peer's last packets after it closed.
const DRAIN: Duration = Duration::from_millis(200);

pub async fn run(settings: &Settings) -> Result<()> {
    let urls = client::requests()?;
    let target = Target::of(&urls[0]).await?;
    let library = match Controllers::from(&settings.congestion) {
        Controllers::Cubic(cubic) => start(settings, &target, cubic)?,
        Controllers::Bbr(bbr) => start(settings, &target, bbr)?,
    };
    let mut client = Client { library, target };
    let outcome = client::fetch_all(&mut client, &settings.case, &urls).await;
    let _ = timeout(DRAIN, client.library.wait_idle()).await;
    outcome
}

fn start<C: Provider>(settings: &Settings, target: &Target, controller: C) -> Result<s2n_quic::Client> {
    let (tls, _) = tls::client(settings.alpn, &settings.case)?;
    s2n_quic::Client::builder()
        .with_tls(rustls::Client::from(tls))?
        .with_io(settings::socket(target.local)?)?
        .with_congestion_controller(controller)?
        .start()
        .map_err(|error| anyhow!("{error}"))
}

struct Client {
    library: s2n_quic::Client,
    target: Target,
}

impl client::Client for Client {
    type Connection = Connection;

    async fn connect(&mut self) -> Result<Connection> {
        let connect = Connect::new(self.target.server).with_server_name(self.target.name.as_str());
        Ok(Connection(self.library.connect(connect).await?.handle()))
    }
}

struct Connection(Handle);

impl client::Connection for Connection {
    type Response = ReceiveStream;

    async fn request(&self, line: &str) -> Result<ReceiveStream> {
        let (receive, mut send) = self.0.clone().open_bidirectional_stream().await?.split();
        send.send(Bytes::copy_from_slice(line.as_bytes())).await?;
        send.finish()?;
        Ok(receive)
    }

    fn close(&self) {
        self.0.close(NO_ERROR.into());
    }
}
