//! The server: serves `/www` over HTTP/0.9.

use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use anyhow::{Context, Result, bail};
use endpoint::files::{self, PIECE};
use msquic::{
    Addr, Api, BufferRef, Configuration, Connection, ConnectionEvent, ConnectionRef, Listener, ListenerEvent,
    Registration, RegistrationConfig, SEND_RESUMPTION_FLAG_FINAL, SendFlags, Status, Stream, StreamEvent, StreamRef,
    StreamShutdownFlags,
};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::keylog::{KeyLog, Secrets};
use crate::settings::{ALPN, Settings};

const PORT: u16 = 443;
/// Longest HTTP/0.9 request line in bytes.
const LONGEST_REQUEST: usize = 4096;
/// Application error code of a refused HTTP/0.9 request.
const REFUSED: u64 = 1;

/// An event for the main thread. This thread closes objects of msquic, because a callback must not close its own
/// object.
enum Event {
    ConnectionEnded(Connection),
    StreamEnded(Stream),
    Terminated,
}

/// Serve until SIGTERM.
pub fn run(settings: &Settings) -> Result<()> {
    let (events, inbox) = channel();
    let mut signals = Signals::new([SIGTERM])?;
    let terminated = events.clone();
    thread::spawn(move || {
        signals.forever().next();
        let _ = terminated.send(Event::Terminated);
    });

    let registration = Registration::new(&RegistrationConfig::default())?;
    let configuration = Arc::new(settings.server(&registration)?);
    let key_log = settings.key_log.clone();
    let listener = Listener::open(&registration, move |_, event| match event {
        ListenerEvent::NewConnection { connection, .. } => {
            accept(&connection, &configuration, key_log.clone(), events.clone())
        }
        ListenerEvent::StopComplete { .. } => Ok(()),
    })?;
    // For msquic, an address without a family means both families.
    let mut address = Addr::from(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)));
    address.ipv4.sin_family = msquic::ADDRESS_FAMILY_UNSPEC;
    listener.start(&[BufferRef::from(ALPN)], Some(&address)).context("UDP port 443")?;

    for event in inbox {
        match event {
            Event::ConnectionEnded(connection) => connection.close(),
            Event::StreamEnded(stream) => stream.close(),
            Event::Terminated => crate::leave(0),
        }
    }
    bail!("msquic has ended")
}

fn accept(
    connection: &ConnectionRef,
    configuration: &Configuration,
    key_log: Arc<KeyLog>,
    events: Sender<Event>,
) -> Result<(), Status> {
    let secrets = Secrets::new(key_log);
    let request = secrets.request();
    connection.set_callback_handler(move |connection, event| {
        match event {
            ConnectionEvent::Connected { .. } => {
                secrets.log();
                send_ticket(&connection)?;
            }
            ConnectionEvent::PeerStreamStarted { stream, .. } => {
                let mut response = Response::new(events.clone());
                stream.set_callback_handler(move |stream, event| response.on(&stream, event));
            }
            ConnectionEvent::ShutdownComplete { handshake_completed, .. } => {
                if !handshake_completed {
                    secrets.log();
                }
                let _ = events.send(Event::ConnectionEnded(unsafe { Connection::from_raw(connection.as_raw()) }));
            }
            _ => {}
        }
        Ok(())
    });
    if let Err(error) = request(connection) {
        eprintln!("no key log: {error:#}");
    }
    connection.set_configuration(configuration)
}

/// msquic sends session tickets only on request.
fn send_ticket(connection: &Connection) -> Result<(), Status> {
    let send = Api::get_ffi().ConnectionSendResumptionTicket.expect("a function of every msquic");
    Status::ok_from_raw(unsafe { send(connection.as_raw(), SEND_RESUMPTION_FLAG_FINAL, 0, std::ptr::null()) })
}

/// A request and its file, which is sent in pieces.
struct Response {
    events: Sender<Event>,
    request: Vec<u8>,
    file: Option<File>,
    /// Bytes of the file that were not yet read.
    left: u64,
    /// The piece and its description below. msquic reads both until it reports that the piece was sent.
    piece: Vec<u8>,
    description: Box<[BufferRef; 1]>,
}

impl Response {
    fn new(events: Sender<Event>) -> Self {
        let description = Box::new([BufferRef::from("")]);
        Self { events, request: Vec::new(), file: None, left: 0, piece: Vec::new(), description }
    }

    fn on(&mut self, stream: &StreamRef, event: StreamEvent) -> Result<(), Status> {
        match event {
            StreamEvent::Receive { buffers, .. } => {
                let space = LONGEST_REQUEST.saturating_sub(self.request.len());
                self.request.extend(buffers.iter().flat_map(BufferRef::as_bytes).take(space));
            }
            StreamEvent::PeerSendShutdown => {
                let outcome = self.open().and_then(|()| self.send(stream));
                self.refuse_if_failed(stream, outcome);
            }
            StreamEvent::SendComplete { cancelled: false, .. } if self.file.is_some() => {
                let outcome = self.send(stream);
                self.refuse_if_failed(stream, outcome);
            }
            StreamEvent::PeerReceiveAborted { .. } => {
                self.file = None;
                let _ = stream.shutdown(StreamShutdownFlags::ABORT_SEND, REFUSED);
            }
            StreamEvent::PeerSendAborted { .. } => {
                let _ = stream.shutdown(StreamShutdownFlags::ABORT, REFUSED);
            }
            StreamEvent::ShutdownComplete { .. } => {
                let _ = self.events.send(Event::StreamEnded(unsafe { Stream::from_raw(stream.as_raw()) }));
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self) -> Result<()> {
        let line = std::str::from_utf8(&self.request)?.trim_end();
        let path = line.strip_prefix("GET ").with_context(|| format!("not a request: {line}"))?;
        let file = files::open_served(path).with_context(|| path.to_owned())?;
        self.left = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    /// Send the next piece. After the last piece the file is closed.
    fn send(&mut self, stream: &Stream) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        self.piece.resize(self.left.min(PIECE as u64) as usize, 0);
        file.read_exact(&mut self.piece)?;
        self.left -= self.piece.len() as u64;
        self.description[0] = BufferRef::from(self.piece.as_slice());
        let flags = if self.left == 0 { SendFlags::FIN } else { SendFlags::NONE };
        if self.left == 0 {
            self.file = None;
        }
        // Piece and description don't change before SendComplete, and only SendComplete calls this function again.
        unsafe { stream.send(&self.description[..], flags, std::ptr::null())? };
        Ok(())
    }

    fn refuse_if_failed(&mut self, stream: &Stream, outcome: Result<()>) {
        if let Err(error) = outcome {
            eprintln!("request: {error:#}");
            self.file = None;
            let _ = stream.shutdown(StreamShutdownFlags::ABORT, REFUSED);
        }
    }
}
