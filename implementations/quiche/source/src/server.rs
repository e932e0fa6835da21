//! The server: serves `/www` over HTTP/0.9 or HTTP/3.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use quiche::{ConnectionId, Header, MAX_CONN_ID_LEN, MIN_CLIENT_INITIAL_LEN, RecvInfo, Type};

use crate::net::{LARGEST_RECEIVED, LARGEST_SENT, Paced, Wire, random, random_id};
use crate::responses::Responses;
use crate::settings::Settings;

const PORT: u16 = 443;
/// Number of packets that are received before packets are sent again.
const BATCH: usize = 64;
/// Application error code of a connection with invalid requests.
const NONSENSE: u64 = 1;

/// Serve until SIGTERM.
pub fn run(settings: &Settings, terminated: UnixStream) -> Result<()> {
    let mut wire = Wire::new(terminated);
    // One socket for both families, unless the host has no IPv6.
    wire.bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)))
        .or_else(|_| wire.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT))))
        .context("UDP port 443")?;
    let mut server = Server {
        settings,
        config: settings.server()?,
        wire,
        clients: HashMap::new(),
        ids: HashMap::new(),
        tokens: HashMap::new(),
        accepted: 0,
    };
    let mut buffer = vec![0; LARGEST_RECEIVED];
    while server.wire.wait(server.clients.values().filter_map(|client| client.connection.deadline()).min())? {
        for _ in 0..BATCH {
            let Some((length, info)) = server.wire.receive(&mut buffer)? else { break };
            server.receive(&mut buffer[..length], info)?;
        }
        server.progress()?;
    }
    Ok(())
}

struct Client {
    connection: Paced,
    responses: Responses,
}

struct Server<'a> {
    settings: &'a Settings,
    config: quiche::Config,
    wire: Wire,
    clients: HashMap<u64, Client>,
    /// Destination connection ID → number of the connection. Has our IDs, and those that clients chose for their first
    /// packets.
    ids: HashMap<ConnectionId<'static>, u64>,
    /// Retry token → the client's address and its first destination connection ID.
    tokens: HashMap<Vec<u8>, (SocketAddr, ConnectionId<'static>)>,
    accepted: u64,
}

impl Server<'_> {
    fn receive(&mut self, packet: &mut [u8], info: RecvInfo) -> Result<()> {
        let Ok(header) = Header::from_slice(packet, MAX_CONN_ID_LEN) else { return Ok(()) };
        let known = match self.ids.get(&header.dcid) {
            Some(number) => Some(*number),
            None => self.welcome(&header, packet.len(), info)?,
        };
        if let Some(number) = known
            && let Some(client) = self.clients.get_mut(&number)
        {
            client.connection.receive(packet, info);
            // Spare connection IDs, because clients need them to migrate. They are issued at once: when quiche has no
            // other ID and an ID is retired twice, quiche takes it for the last one.
            let quic = &mut client.connection.quic;
            while quic.is_established() && quic.scids_left() > 0 {
                let id = random_id()?;
                quic.new_scid(&id, u128::from_ne_bytes(random()?), false)?;
                self.ids.insert(id, number);
            }
        }
        Ok(())
    }

    /// Handle a packet of an unknown client. Returns the number of the new connection, if the packet begins one.
    fn welcome(&mut self, header: &Header, length: usize, info: RecvInfo) -> Result<Option<u64>> {
        // A smaller datagram must not begin a connection (RFC 9000 §14.1).
        if matches!(header.ty, Type::Short | Type::VersionNegotiation) || length < MIN_CLIENT_INITIAL_LEN {
            return Ok(None);
        }
        if !quiche::version_is_supported(header.version) {
            let mut out = [0; LARGEST_SENT];
            let length = quiche::negotiate_version(&header.scid, &header.dcid, &mut out)?;
            self.wire.send(&out[..length], info.to, info.from)?;
            return Ok(None);
        }
        if header.ty != Type::Initial {
            return Ok(None);
        }
        let token = header.token.as_deref().unwrap_or_default();
        match (self.settings.case.as_str(), self.tokens.remove(token)) {
            (_, Some((address, first))) if address == info.from => self.accept(header, Some(&first), info).map(Some),
            ("retry", _) => self.retry(header, info).map(|()| None),
            _ => self.accept(header, None, info).map(Some),
        }
    }

    fn retry(&mut self, header: &Header, info: RecvInfo) -> Result<()> {
        let token = random::<32>()?.to_vec();
        let mut out = [0; LARGEST_SENT];
        let length = quiche::retry(&header.scid, &header.dcid, &random_id()?, &token, header.version, &mut out)?;
        self.tokens.insert(token, (info.from, header.dcid.clone().into_owned()));
        Ok(self.wire.send(&out[..length], info.to, info.from)?)
    }

    /// Accept a connection. `first`: the destination connection ID that the client chose before the Retry; None without
    /// Retry.
    fn accept(&mut self, header: &Header, first: Option<&ConnectionId>, info: RecvInfo) -> Result<u64> {
        self.accepted += 1;
        // After a Retry the client uses the connection ID of the Retry.
        let id = if first.is_some() { header.dcid.clone().into_owned() } else { random_id()? };
        let mut quic = quiche::accept(&id, first, info.to, info.from, &mut self.config)?;
        self.settings.log(&mut quic, &hex(first.unwrap_or(&header.dcid)))?;
        self.ids.insert(header.dcid.clone().into_owned(), self.accepted);
        self.ids.insert(id, self.accepted);
        let client = Client { connection: Paced::new(quic), responses: Responses::new(self.settings.http3) };
        self.clients.insert(self.accepted, client);
        Ok(self.accepted)
    }

    fn progress(&mut self) -> Result<()> {
        for client in self.clients.values_mut() {
            client.connection.expire();
            let quic = &mut client.connection.quic;
            if let Err(error) = client.responses.progress(quic) {
                eprintln!("{}: {error:#}", quic.trace_id());
                // This fails only when the connection is already closed.
                let _ = quic.close(true, NONSENSE, b"");
            }
            client.connection.flush(&self.wire);
        }
        self.clients.retain(|_, client| !client.connection.quic.is_closed());
        self.ids.retain(|_, number| self.clients.contains_key(number));
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
