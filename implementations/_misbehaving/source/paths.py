"""Addresses: the limit before validation, challenges, migration. It tolerates paths that are not validated."""

import os
from typing import Any

from aioquic.buffer import Buffer
from aioquic.quic.connection import (
    NetworkAddress,
    QuicConnection,
    QuicConnectionId,
    QuicNetworkPath,
    QuicReceiveContext,
)
from aioquic.quic.events import ConnectionIdIssued
from aioquic.quic.packet_builder import QuicPacketBuilder
from sins import Chosen

_ENOUGH = 1 << 40
_PREFERRED_ADDRESS = 0x0D  # RFC 9000 §18.2
_TOKEN_BYTES = 16


class Paths(QuicConnection):
    """A connection whose sins are about paths. `preferred`: the preferred address of a server."""

    sin: Chosen
    preferred: bytes
    """IPv4 address and port, IPv6 address and port, as in the transport parameter. Empty: no preferred address."""

    def offer_preferred_address(self, preferred: bytes) -> None:
        """Announce the preferred address, with the connection ID of sequence number 1 (RFC 9000 §5.1.1)."""
        self.preferred = preferred
        spare = QuicConnectionId(
            cid=os.urandom(self._configuration.connection_id_length),
            sequence_number=self._host_cid_seq,
            stateless_reset_token=os.urandom(_TOKEN_BYTES),
            was_sent=True,
        )
        self._host_cids.append(spare)
        self._host_cid_seq += 1
        self._events.append(ConnectionIdIssued(connection_id=spare.cid))

    def _serialize_transport_parameters(self) -> bytes:
        parameters = super()._serialize_transport_parameters()
        if not self.preferred:
            return parameters
        spare = self._host_cids[1]
        value = self.preferred + bytes([len(spare.cid)]) + spare.cid + spare.stateless_reset_token
        return parameters + bytes([_PREFERRED_ADDRESS, len(value)]) + value

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, NetworkAddress]]:
        if self.sin("amplifies"):
            for path in self._network_paths:
                path.bytes_received = _ENOUGH
        return super().datagrams_to_send(now)

    def change_connection_id(self) -> None:
        if not self.sin("keeps-connection-id"):
            super().change_connection_id()

    def _use_reserved_peer_cid(self, network_path: QuicNetworkPath) -> None:
        if not self.sin("keeps-connection-id"):
            super()._use_reserved_peer_cid(network_path)

    def _probe_preferred_address(self) -> None:
        if self.sin("no-migration") or self.sin("migrates") or self.sin("keeps-connection-id"):
            self._remote_preferred_address = None
        else:
            super()._probe_preferred_address()

    def _abandon_path_validation(self) -> None:
        self._network_paths[0].is_validated = True

    def _write_path_challenge_frame(self, builder: QuicPacketBuilder, network_path: QuicNetworkPath) -> None:
        if not self.sin("no-path-challenge"):
            super()._write_path_challenge_frame(builder, network_path)
            return
        network_path.is_validated = network_path.local_challenge_sent = True
        if self._is_client and network_path.peer_cid is not None:
            self._use_reserved_peer_cid(network_path)
            self._network_paths.remove(network_path)
            self._network_paths.insert(0, network_path)

    def _handle_path_challenge_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> Any:
        if self.sin("no-path-response"):
            buf.pull_bytes(8)
        else:
            super()._handle_path_challenge_frame(context, frame_type, buf)
