//! Responses over HTTP/0.9 or HTTP/3: files from `/www`.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;

use anyhow::Result;
use endpoint::files::{self, PIECE};
use quiche::h3::{self, NameValue};

use crate::fields::{self, Section};

/// Longest HTTP/0.9 request line in bytes.
const LONGEST_REQUEST: usize = 4096;
/// Application error code of a refused HTTP/0.9 request.
const REFUSED: u64 = 1;

/// One file that is being sent.
struct Response {
    file: File,
    /// Bytes of the file that were not yet read.
    left: u64,
    /// Bytes that were read.
    piece: Vec<u8>,
    sent: usize,
    /// The header section of HTTP/3; None after it was sent.
    headers: Option<Vec<h3::Header>>,
}

impl Response {
    fn new(file: File, headers: Option<Vec<h3::Header>>) -> Result<Self> {
        let left = file.metadata()?.len();
        Ok(Self { file, left, piece: Vec::new(), sent: 0, headers })
    }

    /// Read the next bytes into `piece[sent..]`, if it is empty. Returns whether they are the last bytes.
    fn read(&mut self) -> Result<bool> {
        if self.sent == self.piece.len() && self.left > 0 {
            self.piece.resize(self.left.min(PIECE as u64) as usize, 0);
            self.file.read_exact(&mut self.piece)?;
            self.left -= self.piece.len() as u64;
            self.sent = 0;
        }
        Ok(self.left == 0)
    }
}

/// The requests and responses of one connection.
pub struct Responses {
    http3: bool,
    /// None until HTTP/3 may begin.
    h3: Option<h3::Connection>,
    /// Incomplete HTTP/0.9 requests, by stream.
    requests: HashMap<u64, Vec<u8>>,
    /// Streams of HTTP/3 requests whose header section came.
    asked: HashSet<u64>,
    responses: HashMap<u64, Response>,
    buffer: Vec<u8>,
}

impl Responses {
    pub fn new(http3: bool) -> Self {
        Self {
            http3,
            h3: None,
            requests: HashMap::new(),
            asked: HashSet::new(),
            responses: HashMap::new(),
            buffer: vec![0; PIECE],
        }
    }

    /// Receive and send as much as possible.
    pub fn progress(&mut self, quic: &mut quiche::Connection) -> Result<()> {
        if !quic.is_established() && !quic.is_in_early_data() {
            return Ok(());
        }
        if self.http3 {
            if self.h3.is_none() {
                self.h3 = Some(h3::Connection::with_transport(quic, &h3::Config::new()?)?);
            }
            self.receive_h3(quic)?;
        } else {
            self.receive_hq(quic)?;
        }
        let waiting = quic.writable().filter(|stream| self.responses.contains_key(stream));
        for stream in waiting.collect::<Vec<_>>() {
            self.send(quic, stream)?;
        }
        Ok(())
    }

    fn receive_hq(&mut self, quic: &mut quiche::Connection) -> Result<()> {
        for stream in quic.readable() {
            while let Ok((length, finished)) = quic.stream_recv(stream, &mut self.buffer) {
                let request = self.requests.entry(stream).or_default();
                request.extend_from_slice(&self.buffer[..length]);
                if !finished && request.len() <= LONGEST_REQUEST {
                    continue;
                }
                let request = self.requests.remove(&stream).unwrap_or_default();
                let text = String::from_utf8_lossy(&request);
                match text.trim_end().strip_prefix("GET ").and_then(|path| files::open_served(path).ok()) {
                    Some(file) => self.respond(quic, stream, Response::new(file, None)?)?,
                    None => {
                        eprintln!("refused: {}", text.trim_end());
                        quic.stream_shutdown(stream, quiche::Shutdown::Write, REFUSED)?;
                    }
                }
                break;
            }
        }
        Ok(())
    }

    fn receive_h3(&mut self, quic: &mut quiche::Connection) -> Result<()> {
        loop {
            let Some(h3) = &mut self.h3 else { return Ok(()) };
            let (stream, event) = match h3.poll(quic) {
                Ok(event) => event,
                Err(h3::Error::Done) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let h3::Event::Headers { list, .. } = event else { continue };
            let is_request = self.asked.insert(stream);
            if let Err(error) = fields::check(&list, if is_request { Section::Request } else { Section::Trailers }) {
                eprintln!("refused: {error:#}");
                self.responses.remove(&stream);
                for direction in [quiche::Shutdown::Read, quiche::Shutdown::Write] {
                    quic.stream_shutdown(stream, direction, fields::MALFORMED).or_else(harmless)?;
                }
                continue;
            }
            if !is_request {
                continue;
            }
            let path = list.iter().find(|field| field.name() == b":path").map(NameValue::value);
            let path = String::from_utf8_lossy(path.unwrap_or_default());
            let headers = |status: &str, length: u64| {
                let field = |name: &str, value: &str| h3::Header::new(name.as_bytes(), value.as_bytes());
                Some(vec![field(":status", status), field("content-length", &length.to_string())])
            };
            let response = match files::open_served(&path) {
                Ok(file) => {
                    let length = file.metadata()?.len();
                    Response::new(file, headers("200", length))?
                }
                Err(_) => Response::new(File::open("/dev/null")?, headers("404", 0))?,
            };
            self.respond(quic, stream, response)?;
        }
    }

    fn respond(&mut self, quic: &mut quiche::Connection, stream: u64, response: Response) -> Result<()> {
        self.responses.insert(stream, response);
        self.send(quic, stream)
    }

    /// Send as much of one response as the windows allow.
    fn send(&mut self, quic: &mut quiche::Connection, stream: u64) -> Result<()> {
        let Some(response) = self.responses.get_mut(&stream) else { return Ok(()) };
        loop {
            let last = response.read()?;
            let piece = &response.piece[response.sent..];
            let sent = match &mut self.h3 {
                None => quic.stream_send(stream, piece, last),
                Some(h3) => send_h3(h3, quic, stream, &mut response.headers, piece, last)?,
            };
            match sent {
                Ok(length) => response.sent += length,
                Err(quiche::Error::Done) => return Ok(()),
                Err(quiche::Error::StreamStopped(_)) => {
                    self.responses.remove(&stream);
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
            if response.sent < response.piece.len() {
                return Ok(());
            }
            if last {
                self.responses.remove(&stream);
                return Ok(());
            }
        }
    }
}

/// A stream that is complete can't be shut down.
fn harmless(error: quiche::Error) -> quiche::Result<()> {
    if matches!(error, quiche::Error::Done) { Ok(()) } else { Err(error) }
}

/// Send the headers, if they were not yet sent, and a piece of the body. The inner error is an error of the transport.
fn send_h3(
    h3: &mut h3::Connection,
    quic: &mut quiche::Connection,
    stream: u64,
    headers: &mut Option<Vec<h3::Header>>,
    piece: &[u8],
    last: bool,
) -> Result<quiche::Result<usize>, h3::Error> {
    let transport = |error| match error {
        h3::Error::Done | h3::Error::StreamBlocked => Ok(Err(quiche::Error::Done)),
        h3::Error::TransportError(error) => Ok(Err(error)),
        error => Err(error),
    };
    if let Some(unsent) = headers {
        let whole = piece.is_empty();
        if let Err(error) = h3.send_response(quic, stream, unsent, whole) {
            return transport(error);
        }
        *headers = None;
        if whole {
            return Ok(Ok(0));
        }
    }
    h3.send_body(quic, stream, piece, last).map(Ok).or_else(transport)
}
