//! The client: downloads every URL of REQUESTS in the way that the test case requires.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use endpoint::client::requests;
use endpoint::files;
use http::Uri;
use msquic::{
    Addr, Api, BufferRef, Configuration, Connection, ConnectionEvent, ConnectionShutdownFlags, Registration,
    RegistrationConfig, SendFlags, StatusCode, Stream, StreamEvent, StreamOpenFlags, StreamStartFlags,
};
use signal_hook::consts::SIGTERM;

use crate::keylog::Secrets;
use crate::settings::Settings;

/// `QUIC_PARAM_CONN_FORCE_KEY_UPDATE` of msquic's private header for its tests.
const FORCE_KEY_UPDATE: u32 = 0x8500_0000;
/// Longest time from the complete handshake to the confirmed handshake. It takes one RTT, which can be long.
const CONFIRMED_TIMEOUT: Duration = Duration::from_secs(10);
const TICKET_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which the client waits for the server's last packets after it closed.
const DRAIN: Duration = Duration::from_millis(200);

/// An event for the main thread.
enum Event {
    Connected,
    Fetched,
    Ticket(Vec<u8>),
    Failed(String),
    Ended,
}

pub fn run(settings: &Settings) -> Result<()> {
    // The first process of a container ignores signals that it doesn't handle.
    signal_hook::flag::register_conditional_shutdown(SIGTERM, 1, Arc::new(AtomicBool::new(true)))?;
    let urls = requests()?;
    let registration = Registration::new(&RegistrationConfig::default())?;
    let client = Client { settings, configuration: settings.client(&registration)?, registration };
    match settings.case.as_str() {
        "multiconnect" => {
            for url in &urls {
                client.fetch(std::slice::from_ref(url), None)?;
            }
        }
        "resumption" | "zerortt" => {
            let (first, rest) = urls.split_first().context("REQUESTS is empty")?;
            ensure!(!rest.is_empty(), "a resumed connection needs a second URL");
            let ticket = client.fetch(std::slice::from_ref(first), None)?.context("no session ticket in 10 s")?;
            client.fetch(rest, Some(&ticket))?;
        }
        _ => drop(client.fetch(&urls, None)?),
    }
    Ok(())
}

struct Client<'a> {
    settings: &'a Settings,
    // This field is dropped before the registration, which can't be closed while it has configurations.
    configuration: Configuration,
    registration: Registration,
}

impl Client<'_> {
    /// Fetch all URLs at once over one new connection. Returns a session ticket when the test case resumes a session
    /// and no ticket was given.
    fn fetch(&self, urls: &[Uri], ticket: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        let (events, inbox) = channel();
        let connection = self.connect(&urls[0], ticket, events.clone())?;
        let early = ticket.is_some() && self.settings.case == "zerortt";
        let streams: Vec<Request> =
            urls.iter().map(|url| Request::send(&connection, url, early, events.clone())).collect::<Result<_>>()?;
        let ticket_timeout = match (self.settings.case.as_str(), ticket) {
            ("resumption" | "zerortt", None) => TICKET_TIMEOUT,
            _ => Duration::ZERO,
        };
        let ticket = self.wait(&connection, &inbox, streams.len(), ticket_timeout)?;
        // msquic ends a connection with an error when it is closed before the handshake is confirmed (possible after
        // 0-RTT).
        confirmed(&connection)?;
        connection.shutdown(ConnectionShutdownFlags::NONE, 0);
        let limit = Instant::now() + DRAIN;
        while !matches!(inbox.recv_timeout(limit.saturating_duration_since(Instant::now())), Ok(Event::Ended) | Err(_))
        {
        }
        Ok(ticket)
    }

    fn connect(&self, url: &Uri, ticket: Option<&[u8]>, events: Sender<Event>) -> Result<Connection> {
        let secrets = Secrets::new(self.settings.key_log.clone());
        let request = secrets.request();
        let connection = Connection::open(&self.registration, move |_, event| {
            let event = match event {
                ConnectionEvent::Connected { .. } => {
                    secrets.log();
                    Event::Connected
                }
                ConnectionEvent::ResumptionTicketReceived { resumption_ticket } => {
                    Event::Ticket(resumption_ticket.into())
                }
                ConnectionEvent::ShutdownInitiatedByTransport { status, error_code } => {
                    Event::Failed(format!("the connection ended: {status}, error code {error_code:#x}"))
                }
                ConnectionEvent::ShutdownInitiatedByPeer { error_code } => {
                    Event::Failed(format!("the server closed the connection with {error_code:#x}"))
                }
                ConnectionEvent::ShutdownComplete { handshake_completed, .. } => {
                    if !handshake_completed {
                        secrets.log();
                    }
                    Event::Ended
                }
                _ => return Ok(()),
            };
            let _ = events.send(event);
            Ok(())
        })?;
        request(&connection)?;
        if let Some(ticket) = ticket {
            let parameter = msquic::ffi::QUIC_PARAM_CONN_RESUMPTION_TICKET;
            unsafe { Api::set_param(connection.as_raw(), parameter, ticket.len() as u32, ticket.as_ptr().cast())? };
        }
        let host = url.host().context("a URL has no host")?;
        connection.start(&self.configuration, host, url.port_u16().unwrap_or(443))?;
        Ok(connection)
    }

    /// Wait until all files have arrived, then at most for the given time until a ticket has arrived.
    fn wait(
        &self,
        connection: &Connection,
        inbox: &Receiver<Event>,
        files: usize,
        ticket_timeout: Duration,
    ) -> Result<Option<Vec<u8>>> {
        let (mut fetched, mut ticket, mut limit) = (0, None, None);
        loop {
            if fetched == files {
                limit = limit.or(Some(Instant::now() + ticket_timeout));
            }
            let event = match limit {
                Some(limit) if ticket.is_some() || Instant::now() >= limit => return Ok(ticket),
                Some(limit) => match inbox.recv_timeout(limit.saturating_duration_since(Instant::now())) {
                    Ok(event) => event,
                    Err(_) => return Ok(None),
                },
                None => inbox.recv()?,
            };
            match event {
                Event::Connected if self.settings.case == "keyupdate" => {
                    // The earliest time that RFC 9001 §6.1 allows.
                    confirmed(connection)?;
                    unsafe { Api::set_param(connection.as_raw(), FORCE_KEY_UPDATE, 0, std::ptr::null())? };
                }
                Event::Connected => {}
                Event::Fetched => fetched += 1,
                Event::Ticket(bytes) => ticket = Some(bytes),
                Event::Failed(reason) => bail!(reason),
                Event::Ended => bail!("the connection ended too early"),
            }
        }
    }
}

/// Returns when the handshake is confirmed. msquic doesn't report this. But before it, msquic refuses every new local
/// address; afterwards, it refuses an invalid address with the error for invalid parameters.
fn confirmed(connection: &Connection) -> Result<()> {
    let nonsense = [0xff; size_of::<Addr>()];
    let parameter = msquic::ffi::QUIC_PARAM_CONN_LOCAL_ADDRESS;
    let refusal = || unsafe {
        Api::set_param(connection.as_raw(), parameter, nonsense.len() as u32, nonsense.as_ptr().cast())
            .map_err(|status| status.try_as_status_code().ok())
    };
    let limit = Instant::now() + CONFIRMED_TIMEOUT;
    while refusal() == Err(Some(StatusCode::QUIC_STATUS_INVALID_STATE)) {
        ensure!(Instant::now() < limit, "no confirmation of the handshake in 10 s");
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A running request. It is dropped before its connection.
struct Request {
    // The stream is closed first: until then msquic reads the fields below.
    _stream: Stream,
    _text: Vec<u8>,
    _description: Box<[BufferRef; 1]>,
}

impl Request {
    fn send(connection: &Connection, url: &Uri, early: bool, events: Sender<Event>) -> Result<Self> {
        let text = format!("GET {}\r\n", url.path()).into_bytes();
        let description = Box::new([BufferRef::from(text.as_slice())]);
        let mut file = files::create_received(url.path())?;
        let name = url.to_string();
        let stream = Stream::open(connection, StreamOpenFlags::NONE, move |_, event| {
            if let Some(event) = receive(event, &mut file, &name) {
                let _ = events.send(event);
            }
            Ok(())
        })?;
        stream.start(StreamStartFlags::NONE)?;
        let flags = if early { SendFlags::FIN | SendFlags::ALLOW_0_RTT } else { SendFlags::FIN };
        unsafe { stream.send(&description[..], flags, std::ptr::null())? };
        Ok(Self { _stream: stream, _text: text, _description: description })
    }
}

fn receive(event: StreamEvent, file: &mut File, name: &str) -> Option<Event> {
    match event {
        StreamEvent::Receive { buffers, .. } => {
            let written = buffers.iter().try_for_each(|buffer| file.write_all(buffer.as_bytes()));
            written.err().map(|error| Event::Failed(format!("{name}: {error}")))
        }
        StreamEvent::PeerSendShutdown => Some(Event::Fetched),
        StreamEvent::PeerSendAborted { error_code } => {
            Some(Event::Failed(format!("{name}: reset with {error_code:#x}")))
        }
        _ => None,
    }
}
