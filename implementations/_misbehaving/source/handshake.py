"""Keys, versions, Retry and ALPN. This endpoint tolerates a wrong Retry tag, and a peer that keeps its key phase."""

from aioquic import tls
from aioquic.buffer import Buffer
from aioquic.quic.connection import QuicConnection, QuicReceiveContext
from aioquic.quic.crypto import CryptoPair, apply_key_phase, next_key_phase
from aioquic.quic.packet import QuicHeader, QuicProtocolVersion, get_retry_integrity_tag
from sins import Chosen


class Handshakes(QuicConnection):
    """A connection whose sins are about the handshake and key updates."""

    sin: Chosen

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        pair = self._cryptos[tls.Epoch.ONE_RTT]
        pair.__class__ = _Pair
        pair.follows = not self.sin("no-key-update")

    def _receive_retry_packet(self, header: QuicHeader, packet_without_tag: bytes, now: float) -> None:
        header.integrity_tag = get_retry_integrity_tag(packet_without_tag, self._peer_cid.cid, version=header.version)
        before = self._retry_count
        super()._receive_retry_packet(header, packet_without_tag, now)
        if self._retry_count == before:
            return
        if self.sin("no-retry-token"):
            self._peer_token = b""
        if self.sin("resets-packet-number"):
            self._packet_number = 0

    def _receive_version_negotiation_packet(self, header: QuicHeader, now: float) -> None:
        if self.sin("takes-unlisted"):
            header.supported_versions = [QuicProtocolVersion.VERSION_2]
        super()._receive_version_negotiation_packet(header, now)

    def _handle_crypto_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        if self.sin("forgets-late-parts") and context.epoch == tls.Epoch.INITIAL:
            begin = buf.tell()
            offset, length = buf.pull_uint_var(), buf.pull_uint_var()
            if offset > self._crypto_streams[context.epoch].receiver.starting_offset():
                buf.pull_bytes(length)
                return
            buf.seek(begin)
        super()._handle_crypto_frame(context, frame_type, buf)


class _Pair(CryptoPair):
    """1-RTT keys that change separately in each direction. aioquic's own keys change together, so that it can't read
    packets of a peer that doesn't follow a key update."""

    follows: bool

    @property
    def key_phase(self) -> int:
        return self.send.key_phase ^ int(self._update_key_requested)

    def _update_key(self, trigger: str) -> None:
        if trigger == "local_update":
            apply_key_phase(self.send, next_key_phase(self.send), trigger=trigger)
            self._update_key_requested = False
            return
        apply_key_phase(self.recv, next_key_phase(self.recv), trigger=trigger)
        if self.follows and self.send.key_phase != self.recv.key_phase:
            apply_key_phase(self.send, next_key_phase(self.send), trigger=trigger)
