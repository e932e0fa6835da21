//! Requests and their responses, over HTTP/0.9 or HTTP/3.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::Write;

use anyhow::{Context, Result, bail, ensure};
use endpoint::files::{self, PIECE};
use http::Uri;
use quiche::h3::{self, NameValue};

use crate::fields::{self, Section};

/// One running request.
struct Fetch {
    url: Uri,
    /// The part of an HTTP/0.9 request that was not yet sent.
    unsent: Vec<u8>,
    file: File,
    /// Whether the final response has begun (HTTP/3).
    answered: bool,
    /// Bytes of the body that were received (HTTP/3), and its Content-Length.
    received: u64,
    length: Option<u64>,
}

impl Fetch {
    fn new(url: Uri, unsent: Vec<u8>) -> Result<Self> {
        let file = files::create_received(url.path())?;
        Ok(Self { url, unsent, file, answered: false, received: 0, length: None })
    }
}

/// All requests of one connection. They are sent at once, as far as the server's stream limit allows.
pub struct Requests {
    waiting: VecDeque<Uri>,
    under_way: HashMap<u64, Fetch>,
    /// The next stream of HTTP/0.9: client-initiated, bidirectional (RFC 9000 §2.1).
    next_stream: u64,
    http3: bool,
    /// None until HTTP/3 may begin.
    h3: Option<h3::Connection>,
    buffer: Vec<u8>,
}

impl Requests {
    pub fn new(urls: &[Uri], http3: bool) -> Self {
        let waiting = urls.iter().cloned().collect();
        Self { waiting, under_way: HashMap::new(), next_stream: 0, http3, h3: None, buffer: vec![0; PIECE] }
    }

    pub fn are_done(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }

    /// Send and receive as much as possible.
    pub fn progress(&mut self, quic: &mut quiche::Connection) -> Result<()> {
        if !quic.is_established() && !quic.is_in_early_data() {
            return Ok(());
        }
        if self.http3 {
            if self.h3.is_none() {
                self.h3 = Some(h3::Connection::with_transport(quic, &h3::Config::new()?)?);
            }
            self.ask_h3(quic)?;
            self.receive_h3(quic)
        } else {
            self.ask_hq(quic)?;
            self.receive_hq(quic)
        }
    }

    fn ask_hq(&mut self, quic: &mut quiche::Connection) -> Result<()> {
        while quic.peer_streams_left_bidi() > 0 {
            let Some(url) = self.waiting.pop_front() else { break };
            let unsent = format!("GET {}\r\n", url.path()).into_bytes();
            let stream = self.next_stream;
            self.next_stream += 4;
            self.under_way.insert(stream, Fetch::new(url, unsent)?);
            self.ask_more_hq(quic, stream)?;
        }
        let unfinished = quic.writable().filter(|stream| self.under_way.contains_key(stream));
        for stream in unfinished.collect::<Vec<_>>() {
            self.ask_more_hq(quic, stream)?;
        }
        Ok(())
    }

    /// Send the rest of a request: the congestion window may be smaller than the request.
    fn ask_more_hq(&mut self, quic: &mut quiche::Connection, stream: u64) -> Result<()> {
        let Some(fetch) = self.under_way.get_mut(&stream) else { return Ok(()) };
        if fetch.unsent.is_empty() {
            return Ok(());
        }
        match quic.stream_send(stream, &fetch.unsent, true) {
            Ok(sent) => drop(fetch.unsent.drain(..sent)),
            Err(quiche::Error::Done) => {}
            Err(error) => return Err(error).with_context(|| fetch.url.to_string()),
        }
        Ok(())
    }

    fn receive_hq(&mut self, quic: &mut quiche::Connection) -> Result<()> {
        for stream in quic.readable() {
            let Some(fetch) = self.under_way.get_mut(&stream) else { continue };
            loop {
                match quic.stream_recv(stream, &mut self.buffer) {
                    Ok((length, finished)) => {
                        fetch.file.write_all(&self.buffer[..length])?;
                        if finished {
                            self.under_way.remove(&stream);
                            break;
                        }
                    }
                    Err(quiche::Error::Done) => break,
                    Err(error) => return Err(error).with_context(|| fetch.url.to_string()),
                }
            }
        }
        Ok(())
    }

    fn ask_h3(&mut self, quic: &mut quiche::Connection) -> Result<()> {
        let Some(h3) = &mut self.h3 else { return Ok(()) };
        while let Some(url) = self.waiting.front() {
            let field = |name: &str, value: &str| h3::Header::new(name.as_bytes(), value.as_bytes());
            let headers = [
                field(":method", "GET"),
                field(":scheme", "https"),
                field(":authority", url.authority().context("a URL has no host")?.as_str()),
                field(":path", url.path()),
            ];
            match h3.send_request(quic, &headers, true) {
                Ok(stream) => {
                    self.under_way.insert(stream, Fetch::new(url.clone(), Vec::new())?);
                    self.waiting.pop_front();
                }
                Err(h3::Error::StreamBlocked | h3::Error::TransportError(quiche::Error::StreamLimit)) => break,
                Err(error) => return Err(error).with_context(|| url.to_string()),
            }
        }
        Ok(())
    }

    fn receive_h3(&mut self, quic: &mut quiche::Connection) -> Result<()> {
        let Some(h3) = &mut self.h3 else { return Ok(()) };
        loop {
            let (stream, event) = match h3.poll(quic) {
                Ok(event) => event,
                Err(h3::Error::Done) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let Some(fetch) = self.under_way.get_mut(&stream) else { continue };
            match event {
                h3::Event::Headers { list, .. } => {
                    if fetch.answered {
                        fields::check(&list, Section::Trailers)?;
                        continue;
                    }
                    fetch.length = fields::check(&list, Section::Response)?;
                    let status = list.iter().find(|field| field.name() == b":status").map(NameValue::value);
                    let status = status.unwrap_or_default();
                    if !matches!(status, [b'1', ..] | b"200") {
                        bail!("{}: status {}", fetch.url, String::from_utf8_lossy(status));
                    }
                    fetch.answered = status == b"200";
                }
                h3::Event::Data => {
                    while let Ok(length) = h3.recv_body(quic, stream, &mut self.buffer) {
                        fetch.file.write_all(&self.buffer[..length])?;
                        fetch.received += length as u64;
                    }
                }
                h3::Event::Finished => {
                    let promised = fetch.length.unwrap_or(fetch.received);
                    ensure!(promised == fetch.received, "{}: {} of {promised} bytes", fetch.url, fetch.received);
                    self.under_way.remove(&stream);
                }
                h3::Event::Reset(code) => bail!("{}: reset with code {code:#x}", fetch.url),
                h3::Event::PriorityUpdate | h3::Event::GoAway => {}
            }
        }
    }
}
