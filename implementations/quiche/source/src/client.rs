//! The client: downloads every URL of REQUESTS in the way that the test case requires.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use endpoint::client::requests;
use http::Uri;

use crate::net::{LARGEST_RECEIVED, Paced, Wire, random_id};
use crate::requests::Requests;
use crate::settings::Settings;

const TICKET_TIMEOUT: Duration = Duration::from_secs(10);

pub fn run(settings: &Settings, terminated: UnixStream) -> Result<()> {
    let urls = requests()?;
    let mut client = Client::new(settings, terminated, &urls[0])?;
    match settings.case.as_str() {
        "multiconnect" => {
            for url in &urls {
                client.fetch(std::slice::from_ref(url), None)?;
            }
            Ok(())
        }
        "resumption" | "zerortt" => {
            let (first, rest) = urls.split_first().context("REQUESTS is empty")?;
            ensure!(!rest.is_empty(), "a resumed connection needs a second URL");
            let session = client.fetch_with_ticket(std::slice::from_ref(first))?;
            client.fetch(rest, Some(&session))
        }
        _ => client.fetch(&urls, None),
    }
}

struct Client<'a> {
    settings: &'a Settings,
    config: quiche::Config,
    wire: Wire,
    any: SocketAddr,
    server: SocketAddr,
    server_name: String,
    connections: usize,
    buffer: Vec<u8>,
}

impl<'a> Client<'a> {
    fn new(settings: &'a Settings, terminated: UnixStream, url: &Uri) -> Result<Self> {
        let server_name = url.host().context("a URL has no host")?.to_owned();
        let server = (server_name.as_str(), url.port_u16().unwrap_or(443))
            .to_socket_addrs()?
            .next()
            .with_context(|| format!("no address for {server_name}"))?;
        let any = if server.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        Ok(Self {
            settings,
            config: settings.client()?,
            wire: Wire::new(terminated),
            any: SocketAddr::new(any, 0),
            server,
            server_name,
            connections: 0,
            buffer: vec![0; LARGEST_RECEIVED],
        })
    }

    fn connect(&mut self, session: Option<&[u8]>) -> Result<Paced> {
        self.connections += 1;
        let local = self.wire.bind(self.any)?;
        let id = random_id()?;
        let mut quic = quiche::connect(Some(&self.server_name), &id, local, self.server, &mut self.config)?;
        self.settings.log(&mut quic, &format!("connection-{}", self.connections))?;
        if let Some(session) = session {
            quic.set_session(session)?;
        }
        Ok(Paced::new(quic))
    }

    /// Fetch all URLs over one new connection.
    fn fetch(&mut self, urls: &[Uri], session: Option<&[u8]>) -> Result<()> {
        let mut connection = self.connect(session)?;
        let mut requests = Requests::new(urls, self.settings.http3);
        while !requests.are_done() {
            self.turn(&mut connection, &mut requests, None)?;
        }
        self.close(connection)
    }

    /// Fetch all URLs over one new connection, and return its session for resumption.
    fn fetch_with_ticket(&mut self, urls: &[Uri]) -> Result<Vec<u8>> {
        let mut connection = self.connect(None)?;
        let mut requests = Requests::new(urls, self.settings.http3);
        while !requests.are_done() {
            self.turn(&mut connection, &mut requests, None)?;
        }
        let limit = Instant::now() + TICKET_TIMEOUT;
        while connection.quic.session().is_none() {
            ensure!(Instant::now() < limit, "no session ticket in 10 s");
            self.turn(&mut connection, &mut requests, Some(limit))?;
        }
        let session = connection.quic.session().unwrap_or_default().to_vec();
        self.close(connection)?;
        Ok(session)
    }

    /// One iteration of the loop: send, wait, receive.
    fn turn(&mut self, connection: &mut Paced, requests: &mut Requests, limit: Option<Instant>) -> Result<()> {
        // `flush` is called twice: the first call makes the ClientHello, and only then 0-RTT is possible.
        connection.flush(&self.wire);
        requests.progress(&mut connection.quic)?;
        connection.flush(&self.wire);
        if requests.are_done() && limit.is_none() {
            return Ok(());
        }
        let deadline = connection.deadline().into_iter().chain(limit).min();
        ensure!(self.wire.wait(deadline)?, "terminated before all files were there");
        while let Some((length, info)) = self.wire.receive(&mut self.buffer)? {
            connection.receive(&mut self.buffer[..length], info);
        }
        connection.expire();
        if connection.quic.is_closed() {
            bail!("the connection ended too early: {}", why(&connection.quic));
        }
        requests.progress(&mut connection.quic)
    }

    fn close(&mut self, mut connection: Paced) -> Result<()> {
        const H3_NO_ERROR: u64 = 0x100;
        connection.quic.close(true, if self.settings.http3 { H3_NO_ERROR } else { 0 }, b"")?;
        while connection.flush(&self.wire) {
            self.wire.wait(connection.deadline())?;
        }
        Ok(())
    }
}

fn why(quic: &quiche::Connection) -> String {
    match (quic.peer_error(), quic.local_error()) {
        (Some(error), _) => format!("the server closed it, {error:?}"),
        (None, Some(error)) => format!("{error:?}"),
        (None, None) if quic.is_timed_out() => "timeout".to_owned(),
        (None, None) => "no reason".to_owned(),
    }
}
