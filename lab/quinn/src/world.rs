//! Virtual time: handles one event after another until the client has the file.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::error::Error;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint, Event, ReadError,
    StreamEvent, StreamId, VarInt, WriteError,
};

use crate::capture::{Capture, Ends, HEADERS};
use crate::control::Shared;
use crate::endpoints::configure;
use crate::link::{Fate, Link, Time, nanoseconds};
use crate::spec::Spec;

const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 2], 50_000);
const SERVER: ([u8; 4], u16) = ([10, 0, 1, 2], 443);
/// Time that the transfer continues after its end, so that packets in flight still get into the captures.
const DRAIN: Time = 300_000_000;

#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Side {
    Client,
    Server,
}

/// A datagram that arrives. Arrivals are ordered by time, then by the order of sending.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    time: Time,
    number: u64,
    to: Side,
    ecn: u8,
    payload: Vec<u8>,
}

/// The state of the server's application: the bytes that it produced, and how many of them it could write.
#[derive(Default)]
struct Produce {
    requested: Option<Time>,
    stream: Option<StreamId>,
    produced: u64,
    written: u64,
    next: Option<Time>,
    pause: usize,
    blocked: bool,
    /// Whether there is a small write that has not left yet.
    unsent: bool,
    finished: bool,
    log: Vec<(Time, u64, u64, bool, u64, u64)>,
}

pub struct World {
    spec: Spec,
    folder: PathBuf,
    base: Instant,
    now: Time,
    client: Endpoint,
    server: Endpoint,
    client_connection: Option<(ConnectionHandle, Connection)>,
    server_connection: Option<(ConnectionHandle, Connection)>,
    shared: Arc<Mutex<Shared>>,
    arrivals: BinaryHeap<Reverse<Arrival>>,
    number: u64,
    forward: Link,
    back: Link,
    first_1rtt: Option<Time>,
    interface_free: Time,
    /// Datagrams of the server that are sent again, with their times.
    copies: VecDeque<(Time, u8, Vec<u8>)>,
    captures: [Capture; 2],
    application: Produce,
    probes: u32,
    received: u64,
    read_from: Option<Time>,
    client_stream: Option<StreamId>,
    done: Option<Time>,
}

impl World {
    pub fn new(spec: Spec, folder: &Path) -> Result<Self, Box<dyn Error>> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let endpoints = configure(&spec, shared.clone(), &folder.join("keys.log"))?;
        let base = Instant::now();
        let mut client = endpoints.client;
        let connection =
            client.connect(base, endpoints.client_config, address(SERVER), "server")?;
        Ok(Self {
            forward: Link::new(spec.forward.clone(), spec.seed.wrapping_mul(2) + 1),
            back: Link::new(spec.back.clone(), spec.seed.wrapping_mul(2) + 2),
            captures: [
                Capture::new(&folder.join("client.pcap")),
                Capture::new(&folder.join("server.pcap")),
            ],
            spec,
            folder: folder.to_path_buf(),
            base,
            now: 0,
            client,
            server: endpoints.server,
            client_connection: Some(connection),
            server_connection: None,
            shared,
            arrivals: BinaryHeap::new(),
            number: 0,
            first_1rtt: None,
            interface_free: 0,
            copies: VecDeque::new(),
            application: Produce::default(),
            probes: 0,
            received: 0,
            read_from: None,
            client_stream: None,
            done: None,
        })
    }

    pub fn run(mut self) -> Result<(), Box<dyn Error>> {
        loop {
            self.drive(Side::Client)?;
            self.drive(Side::Server)?;
            let Some(next) = self.next() else { break };
            self.now = next.max(self.now);
            if self.done.is_some_and(|end| self.now > end + DRAIN)
                || self.now > nanoseconds(self.spec.limit)
            {
                break;
            }
            while self
                .arrivals
                .peek()
                .is_some_and(|Reverse(arrival)| arrival.time <= self.now)
            {
                let Reverse(arrival) = self.arrivals.pop().expect("peeked");
                self.arrive(arrival)?;
            }
            while self
                .copies
                .front()
                .is_some_and(|&(time, _, _)| time <= self.now)
            {
                let (_, ecn, payload) = self.copies.pop_front().expect("checked");
                self.send(Side::Server, ecn, payload);
            }
            self.timers();
        }
        self.finish()
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_nanos(self.now)
    }

    fn next(&mut self) -> Option<Time> {
        let base = self.base;
        let timers = [&mut self.client_connection, &mut self.server_connection]
            .into_iter()
            .flatten()
            .filter_map(|(_, connection)| connection.poll_timeout())
            .map(|time| time.saturating_duration_since(base).as_nanos() as Time);
        let arrival = self.arrivals.peek().map(|Reverse(arrival)| arrival.time);
        let copy = self.copies.front().map(|&(time, _, _)| time);
        timers
            .chain(arrival)
            .chain(self.application.next)
            .chain(self.read_from)
            .chain(copy)
            .min()
    }

    fn timers(&mut self) {
        let instant = self.instant();
        for (side, connection) in [
            (Side::Client, &mut self.client_connection),
            (Side::Server, &mut self.server_connection),
        ] {
            if let Some((_, connection)) = connection {
                if connection
                    .poll_timeout()
                    .is_some_and(|time| time <= instant)
                {
                    let losses = self.shared.lock().unwrap().losses;
                    connection.handle_timeout(instant);
                    if side == Side::Server && self.shared.lock().unwrap().losses == losses {
                        self.probes = 2; // this may be a probe timeout; the window doesn't limit probes (RFC 9002 §7.5)
                    }
                }
            }
        }
    }

    fn arrive(&mut self, arrival: Arrival) -> Result<(), Box<dyn Error>> {
        let instant = self.instant();
        let to_client = arrival.to == Side::Client;
        let ends = if to_client {
            ends(SERVER, CLIENT)
        } else {
            ends(CLIENT, SERVER)
        };
        self.captures[usize::from(!to_client)].add(self.now, &ends, arrival.ecn, &arrival.payload);
        let ecn = match (to_client, self.spec.client.blind.as_str(), arrival.ecn) {
            (true, "all", _) => None,
            (true, "ce", 3) => EcnCodepoint::from_bits(2),
            (_, _, bits) => EcnCodepoint::from_bits(bits),
        };
        let data = BytesMut::from(&arrival.payload[..]);
        let mut answer = Vec::new();
        let (endpoint, connection, peer) = if to_client {
            (
                &mut self.client,
                &mut self.client_connection,
                address(SERVER),
            )
        } else {
            (
                &mut self.server,
                &mut self.server_connection,
                address(CLIENT),
            )
        };
        match endpoint.handle(instant, peer, None, ecn, data, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                if let Ok(accepted) = endpoint.accept(incoming, instant, &mut answer, None) {
                    *connection = Some(accepted);
                }
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
        Ok(())
    }

    fn drive(&mut self, side: Side) -> Result<(), Box<dyn Error>> {
        let instant = self.instant();
        let (endpoint, slot) = match side {
            Side::Client => (&mut self.client, &mut self.client_connection),
            Side::Server => (&mut self.server, &mut self.server_connection),
        };
        let Some((handle, mut connection)) = slot.take() else {
            return Ok(());
        };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = endpoint.handle_event(handle, event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            self.react(side, event, &mut connection);
        }
        match side {
            Side::Client => {
                self.read(&mut connection);
                while self.transmit(side, &mut connection, instant)? {}
            }
            Side::Server => loop {
                let wrote = self.produce(&mut connection);
                let mut sent = false;
                while self.may_send(&connection) && self.transmit(side, &mut connection, instant)? {
                    sent = true;
                    self.application.unsent = false;
                }
                // Small writes leave one by one. When a datagram can't leave, the application stops.
                if self.spec.application.small == 0 || !wrote || !sent {
                    break;
                }
            },
        }
        *match side {
            Side::Client => &mut self.client_connection,
            Side::Server => &mut self.server_connection,
        } = Some((handle, connection));
        Ok(())
    }

    /// Whether the window of an unpaced server has room. For a paced server quinn itself checks this.
    fn may_send(&mut self, connection: &Connection) -> bool {
        if self.spec.server.paced || connection.is_handshaking() || self.probes > 0 {
            return true;
        }
        let shared = self.shared.lock().unwrap();
        shared.in_flight + 1200 <= shared.window
    }

    fn react(&mut self, side: Side, event: Event, connection: &mut Connection) {
        match (side, event) {
            (Side::Client, Event::Connected) => {
                let stream = connection.streams().open(Dir::Bi).expect("a stream");
                let mut send = connection.send_stream(stream);
                send.write(b"GET /transfer\r\n")
                    .expect("credit for the request");
                send.finish().expect("an open stream");
                self.client_stream = Some(stream);
            }
            (Side::Server, Event::Stream(StreamEvent::Opened { dir: Dir::Bi })) => {
                let stream = connection.streams().accept(Dir::Bi).expect("it was opened");
                self.application.stream = Some(stream);
                self.application.requested = Some(self.now);
                self.application.next = Some(self.now + nanoseconds(self.spec.application.delay));
                let mut request = connection.recv_stream(stream);
                if let Ok(mut chunks) = request.read(true) {
                    while let Ok(Some(_)) = chunks.next(65_536) {}
                    let _ = chunks.finalize();
                }
            }
            _ => {}
        }
    }

    /// Runs the server's application: it produces bytes when it is time, and writes as much as the stack takes. Returns
    /// whether it wrote any byte.
    fn produce(&mut self, connection: &mut Connection) -> bool {
        let settings = &self.spec.application;
        let state = &mut self.application;
        let Some(stream) = state.stream else {
            return false;
        };
        if state.finished {
            return false;
        }
        let before = (state.produced, state.written, state.blocked);
        while state.next.is_some_and(|time| time <= self.now) {
            let time = state.next.expect("checked");
            let (bytes, every) = settings.writes.unwrap_or((u64::MAX, 0.0));
            let mut until = state.produced.saturating_add(bytes).min(self.spec.size);
            state.next = (until < self.spec.size).then(|| time + nanoseconds(every));
            if let Some(&(at, pause)) = settings.pauses.get(state.pause) {
                if until >= at {
                    until = at.max(state.produced);
                    state.pause += 1;
                    state.next = Some(time + nanoseconds(pause));
                }
            }
            state.produced = until;
        }
        let mut wrote = false;
        state.blocked = false;
        while state.written < state.produced && !state.unsent {
            let most = if settings.small > 0 {
                settings.small
            } else {
                65_536
            };
            let length = (state.produced - state.written).min(most as u64) as usize;
            match connection.send_stream(stream).write(&vec![b'.'; length]) {
                Ok(taken) => {
                    state.written += taken as u64;
                    wrote = true;
                }
                Err(WriteError::Blocked) => {
                    state.blocked = true;
                    break;
                }
                Err(_) => break,
            }
            if settings.small > 0 {
                state.unsent = wrote;
                break;
            }
        }
        if state.written == self.spec.size {
            state.finished = connection.send_stream(stream).finish().is_ok();
        }
        if before != (state.produced, state.written, state.blocked) {
            let shared = self.shared.lock().unwrap();
            state.log.push((
                self.now,
                state.produced,
                state.written,
                state.blocked,
                shared.window,
                shared.in_flight,
            ));
        }
        wrote
    }

    fn read(&mut self, connection: &mut Connection) {
        let Some(stream) = self.client_stream else {
            return;
        };
        if self.done.is_some() {
            return;
        }
        let mut allowed = u64::MAX;
        if self.spec.client.reads > 0.0 {
            let since = *self.read_from.get_or_insert(self.now);
            // The client reads in steps of 10 ms, like a program that sleeps between reads.
            if self.now < since {
                return;
            }
            allowed = (self.spec.client.reads / 100.0) as u64;
            self.read_from = Some(self.now + 10_000_000);
        }
        let mut receiving = connection.recv_stream(stream);
        let Ok(mut chunks) = receiving.read(true) else {
            return;
        };
        let mut ended = false;
        while allowed > 0 {
            match chunks.next(allowed.min(65_536) as usize) {
                Ok(Some(chunk)) => {
                    self.received += chunk.bytes.len() as u64;
                    allowed = allowed.saturating_sub(chunk.bytes.len() as u64);
                }
                Ok(None) => {
                    ended = true;
                    break;
                }
                Err(ReadError::Blocked) => break,
                Err(_) => break,
            }
        }
        let _ = chunks.finalize();
        if ended {
            self.done = Some(self.now);
            self.read_from = None;
            connection.close(self.instant(), VarInt::from_u32(0), bytes::Bytes::new());
        }
    }

    /// Sends one datagram, if the connection has one.
    fn transmit(
        &mut self,
        side: Side,
        connection: &mut Connection,
        instant: Instant,
    ) -> Result<bool, Box<dyn Error>> {
        let mut buffer = Vec::with_capacity(1500);
        let Some(transmit) = connection.poll_transmit(instant, 1, &mut buffer) else {
            return Ok(false);
        };
        let payload = buffer[..transmit.size].to_vec();
        let ecn = transmit.ecn.map_or(0, |codepoint| codepoint as u8);
        if side == Side::Server {
            self.probes = self.probes.saturating_sub(1);
            if let (Some(delay), true) = (self.spec.server.twice, payload[0] & 0x80 == 0) {
                self.copies
                    .push_back((self.now + nanoseconds(delay), ecn, payload.clone()));
            }
        }
        self.send(side, ecn, payload);
        Ok(true)
    }

    /// Puts a datagram on the link.
    fn send(&mut self, side: Side, ecn: u8, payload: Vec<u8>) {
        let length = payload.len() + HEADERS;
        let mut sent = self.now;
        if side == Side::Server {
            sent = self.interface_free.max(self.now);
            self.interface_free =
                sent + nanoseconds(length as f64 * 8.0 / self.spec.server.interface);
        }
        if payload[0] & 0x80 == 0 {
            self.first_1rtt.get_or_insert(sent);
        }
        let path = self.path(sent, length);
        let (ends, to) = match side {
            Side::Client => (ends(CLIENT, SERVER), Side::Server),
            Side::Server => (ends(SERVER, CLIENT), Side::Client),
        };
        self.captures[usize::from(side == Side::Server)].add(sent, &ends, ecn, &payload);
        let link = if side == Side::Server {
            &mut self.forward
        } else {
            &mut self.back
        };
        let (time, fate) = link.pass(sent, length, ecn & 3 != 0, path);
        if matches!(fate, Fate::Delivered | Fate::Marked) {
            self.number += 1;
            let ecn = if fate == Fate::Marked { 3 } else { ecn };
            self.arrivals.push(Reverse(Arrival {
                time,
                number: self.number,
                to,
                ecn,
                payload,
            }));
        }
    }

    fn path(&self, now: Time, length: usize) -> Option<Fate> {
        let since = now.checked_sub(self.first_1rtt?)?;
        for &(start, duration) in &self.spec.path.outages {
            if since >= nanoseconds(start) && since < nanoseconds(start + duration) {
                return Some(Fate::Outage);
            }
        }
        let (start, size) = self.spec.path.mtu_fall?;
        (since >= nanoseconds(start) && length > size).then_some(Fate::Mtu)
    }

    fn finish(self) -> Result<(), Box<dyn Error>> {
        for capture in self.captures {
            capture.save()?;
        }
        let mut file = fs::File::create(self.folder.join("link.csv"))?;
        writeln!(
            file,
            "direction,sent_ns,length,wait_ns,waiting,arrival_ns,fate,held_back"
        )?;
        for (name, link) in [("forward", &self.forward), ("return", &self.back)] {
            for passage in &link.passages {
                let (fate, held_back) = (passage.fate.name(), u8::from(passage.held_back));
                writeln!(
                    file,
                    "{name},{},{},{},{},{},{fate},{held_back}",
                    passage.sent, passage.length, passage.wait, passage.waiting, passage.arrival
                )?;
            }
        }
        let mut file = fs::File::create(self.folder.join("application.csv"))?;
        writeln!(file, "time_ns,produced,written,blocked,window,in_flight")?;
        for (time, produced, written, blocked, window, in_flight) in &self.application.log {
            writeln!(
                file,
                "{time},{produced},{written},{},{window},{in_flight}",
                u8::from(*blocked)
            )?;
        }
        let state = self
            .server_connection
            .as_ref()
            .map(|(_, connection)| connection.stats());
        let end = serde_json::json!({
            "complete": self.received == self.spec.size && self.done.is_some(),
            "first_1rtt_ns": self.first_1rtt,
            "requested_ns": self.application.requested,
            "lost_packets": state.map(|stats| stats.path.lost_packets),
            "congestion_events": state.map(|stats| stats.path.congestion_events),
        });
        fs::write(self.folder.join("end.json"), end.to_string())?;
        if self.received != self.spec.size {
            return Err(format!(
                "the client got {} of {} bytes by {} ns",
                self.received, self.spec.size, self.now
            )
            .into());
        }
        Ok(())
    }
}

fn address((ip, port): ([u8; 4], u16)) -> SocketAddr {
    SocketAddr::from((ip, port))
}

fn ends(source: ([u8; 4], u16), target: ([u8; 4], u16)) -> Ends {
    Ends { source, target }
}
