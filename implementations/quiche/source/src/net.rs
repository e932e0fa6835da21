//! The UDP sockets, the function in which the program waits, and connections whose packets are sent at quiche's times.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::Result;
use quiche::{ConnectionId, MAX_CONN_ID_LEN, RecvInfo, SendInfo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::rand::{GetRandomFlags, getrandom};

/// Largest sent UDP payload in bytes, as in quiche's own tools.
pub const LARGEST_SENT: usize = 1350;
/// Largest possible UDP payload in bytes.
pub const LARGEST_RECEIVED: usize = 65535;
/// Time until the next attempt when the socket's buffer is full.
const FULL_SOCKET: Duration = Duration::from_millis(1);

pub fn random<const LENGTH: usize>() -> Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

pub fn random_id() -> Result<ConnectionId<'static>> {
    Ok(random::<MAX_CONN_ID_LEN>()?.to_vec().into())
}

pub struct Wire {
    sockets: Vec<(UdpSocket, SocketAddr)>,
    terminated: UnixStream,
}

impl Wire {
    /// `terminated` becomes readable after SIGTERM.
    pub fn new(terminated: UnixStream) -> Self {
        Self { sockets: Vec::new(), terminated }
    }

    /// Open another socket. Returns its local address, which is a wildcard address when `address` is one.
    pub fn bind(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        self.sockets.push((socket, local));
        Ok(local)
    }

    /// Wait for a packet, at most until the deadline. Returns false after SIGTERM.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<bool> {
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let mut watched = vec![PollFd::new(&self.terminated, PollFlags::IN)];
        watched.extend(self.sockets.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::IN)));
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(watched[0].revents().is_empty()),
            Err(error) => Err(error.into()),
        }
    }

    /// The next received packet; None when there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<(usize, RecvInfo)>> {
        for (socket, local) in &self.sockets {
            match socket.recv_from(buffer) {
                Ok((length, from)) => return Ok(Some((length, RecvInfo { from, to: *local }))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    pub fn send(&self, packet: &[u8], from: SocketAddr, to: SocketAddr) -> io::Result<()> {
        let socket = self.sockets.iter().find(|(_, local)| *local == from);
        let (socket, _) = socket.ok_or(io::ErrorKind::AddrNotAvailable)?;
        socket.send_to(packet, to).map(|_| ())
    }
}

/// A connection, and its next packet with the time at which it must be sent.
pub struct Paced {
    pub quic: quiche::Connection,
    packet: [u8; LARGEST_SENT],
    held: Option<(usize, SendInfo)>,
}

impl Paced {
    pub fn new(quic: quiche::Connection) -> Self {
        Self { quic, packet: [0; LARGEST_SENT], held: None }
    }

    /// The next time at which `expire` or `flush` must be called.
    pub fn deadline(&self) -> Option<Instant> {
        let due = self.held.map(|(_, info)| info.at);
        self.quic.timeout_instant().into_iter().chain(due).min()
    }

    pub fn receive(&mut self, packet: &mut [u8], info: RecvInfo) {
        if let Err(error) = self.quic.recv(packet, info) {
            eprintln!("{}: packet refused: {error}", self.quic.trace_id());
        }
    }

    pub fn expire(&mut self) {
        if self.quic.timeout_instant().is_some_and(|timeout| timeout <= Instant::now()) {
            self.quic.on_timeout();
        }
    }

    /// Send every packet that is due. Returns true when a packet is not yet due. quiche gives a sending time with each
    /// packet, but the caller must wait for this time.
    pub fn flush(&mut self, wire: &Wire) -> bool {
        while let Some((length, mut info)) = self.held.take().or_else(|| self.next_packet()) {
            if info.at > Instant::now() {
                self.held = Some((length, info));
                return true;
            }
            match wire.send(&self.packet[..length], info.from, info.to) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    info.at = Instant::now() + FULL_SOCKET;
                    self.held = Some((length, info));
                    return true;
                }
                // A packet that the network refuses counts as lost.
                Err(error) => eprintln!("{}: packet not sent: {error}", self.quic.trace_id()),
            }
        }
        false
    }

    fn next_packet(&mut self) -> Option<(usize, SendInfo)> {
        match self.quic.send(&mut self.packet) {
            Ok(packet) => Some(packet),
            Err(quiche::Error::Done) => None,
            Err(error) => {
                eprintln!("{}: nothing more can be sent: {error}", self.quic.trace_id());
                // This fails only when the connection is already closed.
                let _ = self.quic.close(false, 1, b"send failed");
                None
            }
        }
    }
}
