"""A QUIC endpoint that sends any packet at any moment, and otherwise keeps a valid connection going.

It has no sockets and no clock: the caller gives it datagrams and times, and sends what is in `outbox`. Honest traffic
is small (one request, one file), so there is no congestion control, and all limits are given at the start.
"""

import copy
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import vocabulary as words
from aioquic import tls
from aioquic.buffer import Buffer, BufferReadError
from aioquic.quic.crypto import CryptoError
from aioquic.quic.packet import QuicPacketType, pull_quic_header
from connection import OPAQUE_PARAMETERS, PARAMETERS, Assembly, Identity, Space, update_keys
from edited_tls import edited
from sealing import acknowledge, seal
from vocabulary import EARLY, HANDSHAKE, INITIAL, ONE_RTT, Packet, Raw, Series, Wait

_TYPES = {
    QuicPacketType.INITIAL: INITIAL,
    QuicPacketType.ZERO_RTT: EARLY,
    QuicPacketType.HANDSHAKE: HANDSHAKE,
    QuicPacketType.ONE_RTT: ONE_RTT,
}
_EPOCHS = {
    tls.Epoch.INITIAL: INITIAL,
    tls.Epoch.ZERO_RTT: EARLY,
    tls.Epoch.HANDSHAKE: HANDSHAKE,
    tls.Epoch.ONE_RTT: ONE_RTT,
}
_SPACES = {INITIAL: "initial", EARLY: "0rtt", HANDSHAKE: "handshake", ONE_RTT: "1rtt"}
_LABELS = {EARLY: "EARLY_TRAFFIC_SECRET", HANDSHAKE: "HANDSHAKE_TRAFFIC_SECRET", ONE_RTT: "TRAFFIC_SECRET_0"}
_MESSAGES = {
    1: "client_hello",
    2: "server_hello",
    4: "new_session_ticket",
    8: "encrypted_extensions",
    11: "certificate",
    13: "certificate_request",
    15: "certificate_verify",
    20: "finished",
}
_ROOM = 1200  # bytes of a datagram
_BURST, _PAUSE = 10, 0.01  # datagrams of a flood before a pause, and its seconds: sockets have small buffers
_PTO = 0.2  # seconds until unacknowledged frames are sent again; doubled each time
_ID = 8  # bytes of this endpoint's connection IDs
_TRANSPORT_PARAMETERS = 57  # the TLS extension (RFC 9001 §8.2)
_ALPN = 16
_TABLE_CAPACITY, _BLOCKED_STREAMS = 1, 7  # settings of QPACK (RFC 9204 §5)
_ALTERING = (
    "parameters",
    "messages",
    "small",
    "token",
    "retry_token",
    "asks_certificate",
)  # keys of flights that change honest packets
_NEED_NO_ACK = (0x00, 0x02, 0x03, 0x1C, 0x1D)

_GROUPS = {0x1D, 0x17, 0x18, 0x19}  # key shares that the TLS engine reads


class Peer:
    """One connection, honest but for its flight.

    `flight`: a row of flights.toml, {} for an honest connection. `content`: the file that a server serves. `outbox`:
    datagrams to send, with True for those from another port. `replayed`: the client whose ClientHello is sent again.
    `before`: the client of the connection that came before, for a flight that uses its tokens.
    """

    def __init__(
        self,
        flight: dict[str, Any],
        *,
        is_client: bool,
        alpn: str,
        now: float,
        patience: float,
        identity: Identity | None = None,
        content: bytes = b"",
        target: str = "/",
        host: str = "server4",
        ticket: tls.SessionTicket | None = None,
        tickets: dict[bytes, tls.SessionTicket] | None = None,
        replayed: "Peer | None" = None,
        before: "Peer | None" = None,
        key_log: Callable[[str], None] = lambda _: None,
        rng: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.flight, self.is_client, self.alpn = flight, is_client, alpn
        self.outbox: list[tuple[bytes, bool]] = []
        self.scid, self.dcid, self.odcid = rng(flight.get("id_length", _ID)), rng(_ID), b""
        self.token = b""
        self.retried = b""  # the connection ID of our Retry
        self.before, self.challenges = before, list[bytes]()  # data of PATH_CHALLENGE frames that wait for the flight
        self.moved = flight.get("moves") == "first"  # whether all packets leave from the other port
        self.spaces = {space: Space() for space in (INITIAL, EARLY, HANDSHAKE, ONE_RTT)}
        self.spaces[EARLY].received = self.spaces[ONE_RTT].received
        self.streams: dict[int, Assembly] = {}
        self.offsets: dict[int, int] = {}
        self.theirs: dict[str, Any] = dict.fromkeys(PARAMETERS, 0) | {"active_connection_id_limit": 2}
        self.sent: list[dict[str, Any]] = []  # the datagrams of the flight
        self.count = 0  # of all datagrams from their port, from the first to the last of the flight
        self._emitted = {False: 0, True: 0}  # all datagrams, by whether they left from the other port
        self.closed: dict[str, Any] | None = None  # what the other endpoint closed the connection with
        self.trouble = self.mistake = ""  # why the connection can't go on; what is wrong in the row
        self.confirmed = self.answered = self.done = False
        self.taken: set[int] = set()  # streams on which honest traffic sends no more
        self.requested: int | None = None  # the stream of the honest request
        self.fired: float | None = None
        self.continues: float | None = None  # when honest traffic goes on
        self.version = 1
        self.applies = True
        self.learned = False  # whether `theirs` are known
        self.turns = 0  # parts of the flight that were sent
        self.sealed: list[dict[str, Any]] = []  # spaces and numbers of the packets of the last datagram
        self.new_tokens: list[bytes] = []
        self.ids: list[bytes] = []  # connection IDs that the other endpoint issued with NEW_CONNECTION_ID
        self.new_tickets: list[tls.SessionTicket] = []
        self.most_streams = 0  # bidirectional streams that this endpoint may open
        self._content, self._target, self._host, self._key_log = content, target, host, key_log
        self._patience, self._rng = patience, rng
        self.began, self._deadline, self._backoff = now, None, 0
        self._pending = list(flight.get("send", ())) * flight.get("times", 1)
        self._ready_at: float | None = None
        self._awaits: float | None = None  # until when connection IDs and challenges of the other endpoint may arrive
        self._ticket, self._tickets, self._identity = ticket, tickets, identity
        self._tls: tls.Context | None = None
        self._hello = self._retry_transcript = b""
        if "token" in flight:
            self.token = self._value(flight["token"], b"")
        if is_client:
            self.odcid = self.dcid
            self.spaces[INITIAL].keys.setup_initial(self.dcid, True, 1)
            self._reach("first", now)
            self._start_tls()
            self._say_hello(replayed)
            self._reach("initial-sent", now)
            self.flush(now)

    # TLS

    def _start_tls(self) -> None:
        self._tls = context = tls.Context(
            is_client=self.is_client,
            alpn_protocols=[self.alpn],
            server_name=self._host if self.is_client else None,
            verify_mode=0,
            max_early_data=0xFFFFFFFF if self._tickets is not None else None,
        )
        context._request_client_certificate = bool(self.flight.get("asks_certificate"))
        context.update_traffic_key_cb = self._set_keys
        if self.is_client:
            context.session_ticket = self._ticket
            context.new_session_ticket_cb = self.new_tickets.append
        else:
            assert self._identity is not None
            first, *chain = tls.load_pem_x509_certificates(self._identity.chain)
            context.certificate, context.certificate_chain = first, chain
            context.certificate_private_key = tls.load_pem_private_key(self._identity.key)
            if self._tickets is not None:
                context.get_session_ticket_cb = lambda label: self._tickets.pop(label, None)
                context.new_session_ticket_cb = lambda new: self._tickets.__setitem__(new.ticket, new)
        context.handshake_extensions = [(_TRANSPORT_PARAMETERS, self._parameters())]

    def _say_hello(self, replayed: "Peer | None") -> None:
        """Queue the ClientHello. That of another connection comes with its state of TLS, its 0-RTT keys and the source
        connection ID that it names."""
        initial = self.spaces[INITIAL]
        if replayed is None:
            self._advance(b"")
            kept = copy.copy(self._tls)
            kept._key_schedule_proxy = copy.deepcopy(kept._key_schedule_proxy)
            kept._key_schedule_psk = copy.deepcopy(kept._key_schedule_psk)
            self.hello = kept, list(initial.queue)
            return
        self._tls, initial.queue = replayed.hello
        self._tls.update_traffic_key_cb = self._set_keys
        self.scid, initial.sent = replayed.scid, replayed.spaces[INITIAL].sent
        self.spaces[EARLY].keys = replayed.spaces[EARLY].keys

    def _parameters(self) -> bytes:
        """This endpoint's transport parameters, with the flight's changes. None leaves a parameter out; a list sends
        it several times."""
        large = 1 << 20
        values: dict[str | int, Any] = {
            "max_idle_timeout": 5000,
            "max_udp_payload_size": 1472,
            "initial_max_data": large,
            "initial_max_stream_data_bidi_local": large,
            "initial_max_stream_data_bidi_remote": large,
            "initial_max_stream_data_uni": large,
            "initial_max_streams_bidi": 100,
            "initial_max_streams_uni": 100,
            "active_connection_id_limit": 4,
            "initial_source_connection_id": self.scid,
        }
        if not self.is_client:
            values["original_destination_connection_id"] = self.odcid
        if self.retried:
            values["retry_source_connection_id"] = self.retried
        for name, text in self.flight.get("parameters", {}).items():
            values[name] = self._value(text)
        encoded = b""
        for name, value in values.items():
            kind = PARAMETERS[name] if name in PARAMETERS else self._value(name, 0)
            for each in value if isinstance(value, list) else [] if value is None else [value]:
                encoded += words.varint(kind) + words.block(each if isinstance(each, bytes) else words.varint(each))
        return encoded

    def _edit(self, message: bytes) -> bytes:
        text = self.flight.get("messages", {}).get(_MESSAGES.get(message[0], ""))
        edited: bytes = message if text is None else self._value(text, message, message=message)
        if text is not None and message[0] == 1 and edited == words.without(message, _ALPN):
            assert self._tls is not None
            self._tls._alpn_protocols = None  # else TLS breaks off the handshake that the server has to end
        return edited

    def _set_keys(self, direction: tls.Direction, epoch: tls.Epoch, suite: tls.CipherSuite, secret: bytes) -> None:
        space, sends = _EPOCHS[epoch], direction == tls.Direction.ENCRYPT
        keys = self.spaces[space].keys
        (keys.send if sends else keys.recv).setup(cipher_suite=suite, secret=secret, version=self.version)
        label = f"{'CLIENT' if sends == self.is_client else 'SERVER'}_{_LABELS[space]}"
        assert self._tls is not None
        self._key_log(f"{label} {self._tls.client_random.hex()} {secret.hex()}\n")

    def _advance(self, data: bytes) -> None:
        """Give TLS the next bytes of its stream, and queue what it answers."""
        assert self._tls is not None
        if self._tls.state == tls.State.SERVER_EXPECT_CLIENT_HELLO and not (data := self._agree_on_group(data)):
            return
        buffers = {epoch: Buffer(capacity=1 << 16) for epoch in tls.Epoch}
        try:
            with edited(self._edit, self._retry_transcript):
                self._tls.handle_message(data, buffers)
        except (tls.Alert, AssertionError, ValueError) as error:
            self.trouble = f"TLS: {type(error).__name__} {error}"
        for epoch, buffer in buffers.items():
            self.queue_crypto(_EPOCHS[epoch], buffer.data)
        if self._tls.received_extensions:
            for kind, value in self._tls.received_extensions:
                if kind == _TRANSPORT_PARAMETERS:
                    self._learn(value)

    def _agree_on_group(self, data: bytes) -> bytes:
        """The whole ClientHello with a key share that TLS can read. Asks for another share when it has none."""
        self._hello += data
        if len(self._hello) < 4 or len(self._hello) < 4 + int.from_bytes(self._hello[1:4]):
            return b""
        hello, self._hello = self._hello, b""
        assert self._tls is not None
        shares = words.shared_groups(hello) if hello[0] == 1 else []
        if not self._retry_transcript and shares and not _GROUPS.intersection(shares):
            self._tls._cipher_suites = [tls.CipherSuite.AES_128_GCM_SHA256]  # that of the HelloRetryRequest
            retry = words.hello_retry(words.extension(51, b"\0\x1d"))
            self._retry_transcript = words.tls(254, hashlib.sha256(hello).digest()) + retry
            self.queue_crypto(INITIAL, retry)
            return b""
        return hello

    def queue_crypto(self, space: str, data: bytes) -> None:
        """Queue CRYPTO data after what was sent before."""
        state = self.spaces[space]
        for at in range(0, len(data), 1000):
            piece = data[at : at + 1000]
            state.queue.append(words.crypto(state.sent, piece))
            state.sent += len(piece)

    def _learn(self, data: bytes) -> None:
        self.learned = True
        buffer, names = Buffer(data=data), {number: name for name, number in PARAMETERS.items()}
        while not buffer.eof():
            kind = buffer.pull_uint_var()
            value = buffer.pull_bytes(buffer.pull_uint_var())
            if kind in names:
                self.theirs[names[kind]] = value if kind in OPAQUE_PARAMETERS else Buffer(data=value).pull_uint_var()
        self.most_streams = max(self.most_streams, self.theirs["initial_max_streams_bidi"])

    # Receiving

    def receive(self, data: bytes, now: float) -> None:
        """Read a datagram."""
        if self.flight.get("deaf") and self.fired is not None:
            return
        buffer = Buffer(data=data)
        while not buffer.eof() and not self.done:
            start = buffer.tell()
            try:
                header = pull_quic_header(buffer, host_cid_length=len(self.scid))
            except (ValueError, BufferReadError):
                break  # some stacks fill datagrams after the last packet
            end = start + header.packet_length
            if header.packet_type in _TYPES:
                self._open(header, data[start:end], buffer.tell() - start, now)
            elif self.is_client and header.packet_type is QuicPacketType.RETRY and not self.token:
                self._follow_retry(header.source_cid, header.token)
            buffer.seek(end)
        self._states(now)
        self.flush(now)

    def _send_retry(self) -> None:
        if not self.retried:
            self.retried = self._rng(_ID)
            self.spaces[INITIAL].keys.setup_initial(self.retried, False, 1)
            self.emit([words.retry(self.retried, self.dcid, self.odcid, b"bentpipe token")])

    def _follow_retry(self, scid: bytes, token: bytes) -> None:
        space = self.spaces[INITIAL]
        self.dcid, self.token = scid, token
        if self.flight.get("moves") == "retried":
            self.moved, self.odcid = True, scid  # seen from outside, a connection from another port begins
        if "retry_token" in self.flight:
            self.token = self._value(self.flight["retry_token"], b"")
        space.keys.setup_initial(scid, True, 1)
        space.queue = [each for frames in space.unacked.values() for each in frames] + space.queue
        space.unacked = {}

    def _open(self, header: Any, packet: bytes, offset: int, now: float) -> None:
        kind = _TYPES[header.packet_type]
        if self.confirmed and kind in (INITIAL, HANDSHAKE):
            return
        if not self.is_client and not self.odcid:
            if kind != INITIAL:
                return
            self.odcid, self.dcid = header.destination_cid, header.source_cid
            self.spaces[INITIAL].keys.setup_initial(self.odcid, False, 1)
        if not self.is_client and self.flight.get("retries") and not header.token and kind == INITIAL:
            self._send_retry()
            return
        space = self.spaces[kind]
        try:
            expected = max(space.received, default=-1) + 1
            _, payload, number, updated = space.keys.recv.decrypt_packet(packet, offset, expected)
        except (CryptoError, AssertionError):
            return
        if updated:
            update_keys(space.keys.recv)
            if space.keys.send.key_phase != space.keys.recv.key_phase:
                update_keys(space.keys.send)
        if number in space.received:
            return
        if self.is_client and kind == INITIAL and not self.spaces[INITIAL].received:
            self.dcid = header.source_cid
        space.received.add(number)
        if not self.is_client and self._tls is None:
            self._reach("first", now)
            if not self._ends_after_flight:
                self._start_tls()
        try:
            for _ in self._frames(Buffer(data=payload), kind):
                pass
        except (BufferReadError, ValueError) as error:
            self.trouble = f"a frame in a {kind} packet can't be read: {error}"

    def _frames(self, buffer: Buffer, kind: str) -> Iterator[None]:
        """Handles the frames of a packet, one by one."""
        space = self.spaces[ONE_RTT if kind == EARLY else kind]
        pull = buffer.pull_uint_var
        while not buffer.eof():
            frame = pull()
            if frame not in _NEED_NO_ACK:
                space.owes_ack = True
            if frame in (0x02, 0x03):
                largest, _, count = pull(), pull(), pull()
                low = largest - pull()
                acked = [(low, largest)]
                for _ in range(count):
                    high = low - pull() - 2
                    low = high - pull()
                    acked.append((low, high))
                if frame == 0x03:
                    _ = pull(), pull(), pull()
                self._acked(space, acked)
            elif frame == 0x06:
                offset = pull()
                data = space.crypto.add(offset, buffer.pull_bytes(pull()))
                if data and self._tls is not None:
                    self._advance(data)
            elif 0x08 <= frame < 0x10:
                stream, offset = pull(), pull() if frame & 4 else 0
                length = pull() if frame & 2 else buffer.capacity - buffer.tell()
                self.streams.setdefault(stream, Assembly()).add(offset, buffer.pull_bytes(length), fin=bool(frame & 1))
            elif frame in (0x1C, 0x1D):
                code, cause = pull(), pull() if frame == 0x1C else None
                reason = buffer.pull_bytes(pull())
                self.closed = {"space": kind, "frame": frame, "code": code, "cause": cause, "reason": reason.hex()}
                self.done = True
            else:
                self._other(frame, buffer)
            yield

    def _other(self, frame: int, buffer: Buffer) -> None:
        pull = buffer.pull_uint_var
        if frame == 0x07:
            self.new_tokens.append(buffer.pull_bytes(pull()))
        elif frame == 0x18:
            _ = pull(), pull()
            self.ids.append(buffer.pull_bytes(buffer.pull_uint8()))
            buffer.pull_bytes(16)
        elif frame == 0x12:
            self.most_streams = max(self.most_streams, pull())
        elif frame == 0x1A:
            self._answer_challenge(buffer.pull_bytes(8))
        elif frame == 0x1B:
            buffer.pull_bytes(8)
        elif frame == 0x1E:
            self._confirm()
        elif frame in (0x30, 0x31):
            buffer.pull_bytes(pull() if frame == 0x31 else buffer.capacity - buffer.tell())
        else:
            for _ in range({0x04: 3, 0x05: 2, 0x11: 2, 0x15: 2, 0x00: 0, 0x01: 0}.get(frame, 1)):
                pull()

    def _answer_challenge(self, data: bytes) -> None:
        """Answer PATH_CHALLENGE. After this endpoint has moved, the answer leaves on the old path, and the flight sends
        the first one."""
        if not self.moved:
            self.spaces[ONE_RTT].queue.append(words.path_response(data))
        elif self.fired is None:
            self.challenges.append(data)
        else:
            self.emit([Packet(ONE_RTT, words.path_response(data) + words.padding(1150), {"elsewhere": False})])

    def _acked(self, space: Space, acked: list[tuple[int, int]]) -> None:
        for number in [each for each in space.unacked if any(low <= each <= high for low, high in acked)]:
            del space.unacked[number]
        self._backoff = 0

    # What happens next

    def _states(self, now: float) -> None:
        """Fires the flight when its state is reached, and goes on with the connection."""
        if (end := self._end()) is not None:
            if now >= end and (self.is_client or "times" in self.flight):
                self.finish(now)  # some servers serve one connection after another
            self.done |= now >= end
            return
        if self._tls is None or self.done:
            return
        if self.spaces[HANDSHAKE].keys.send.is_valid():
            self._reach("initial", now)
            self._reach("handshake", now)
        if not self.is_client and self._tls.state == tls.State.SERVER_POST_HANDSHAKE and not self.confirmed:
            self._confirm()
            self.spaces[ONE_RTT].queue.append(words.handshake_done())
        if self.spaces[ONE_RTT].keys.send.is_valid():
            self._reach("complete", now)
        if not self.confirmed or self._ready_at is not None or (self.continues is not None and now < self.continues):
            return
        if self.is_client:
            self._act_as_client(now)
        else:
            self._act_as_server(now)

    def _confirm(self) -> None:
        """The handshake is confirmed: honest traffic leaves the keys before 1-RTT (RFC 9001 §4.9)."""
        self.confirmed = True
        for name in (INITIAL, HANDSHAKE):
            space = self.spaces[name]
            space.queue, space.unacked, space.owes_ack = [], {}, False

    def _act_as_client(self, now: float) -> None:
        if self.alpn == "h3" and self.own_uni(0) not in self.offsets and self._open_control(now):
            return
        if self.flight.get("moves") == "confirmed" and not self.moved and self.applies:
            self._move(now)
            return
        if self._reach("confirmed", now):
            return
        if self.requested is None:
            self.requested = next(iter(self.fresh(1)), None)
            if self.requested is None:
                return  # the other endpoint allows no more streams yet
            self.send_stream(self.requested, self.request(), fin=True)
        elif self.requested in self.streams and self.streams[self.requested].complete:
            if self._reach("answered", now):
                self.requested = None  # another request follows the flight
                return
            self.answered = True
            self.finish(now)

    def _act_as_server(self, now: float) -> None:
        request = self.streams.get(0)
        if request is None or not request.complete:
            return
        if self.alpn == "h3" and self.own_uni(0) not in self.offsets and self._open_control(now):
            return
        if self._reach("confirmed", now):
            return
        if not self.answered:
            self.answered = True
            if 0 not in self.taken:
                self.send_stream(0, self.response(), fin=True)
            self._reach("answered", now)

    def _move(self, now: float) -> None:
        """Go on from the other port. Waits for connection IDs of the server, so that it can use another one, and gives
        it some (RFC 9000 §9.5)."""
        self._awaits = self._awaits or now + 2 * self._patience
        if not self.ids and now < self._awaits:
            return
        for number in range(1, min(self.theirs["active_connection_id_limit"], 4)):
            self.spaces[ONE_RTT].queue.append(words.new_connection_id(number, 0, self._rng(_ID), self._rng(16)))
        self.flush(now)
        self.dcid, self.moved, self._awaits = self.ids[0] if self.ids else self.dcid, True, None
        self.emit([Packet(ONE_RTT, words.ping())])

    def _open_control(self, now: float) -> bool:
        """Open the control stream. `control`: the flight's bytes for it. Returns whether the flight begins with it."""
        text = self.flight.get("control")
        data = words.varint(0) + words.settings((1, 0), (7, 0)) if text is None else self._value(text, b"")
        if self.mistake:
            return True
        self.flush(now)
        before = len(self.outbox)
        self.send_stream(self.own_uni(0), data)
        self.flush(now)
        if text is None:
            return False
        self._log(now, before)
        self.continues = now + self._patience
        return not self._pending

    def finish(self, now: float) -> None:
        """Close the connection without an error."""
        if not self.done:
            self.flush(now)
            code = 0x100 if self.alpn == "h3" else 0
            if self.spaces[ONE_RTT].keys.send.is_valid():
                self.emit([Packet(ONE_RTT, words.close_application(code))])
            self.done = True

    def request(self) -> bytes:
        """The honest request of the file."""
        if self.alpn != "h3":
            return f"GET {self._target}\r\n".encode()
        return words.headers(*self._pseudo())

    def _pseudo(self) -> list[tuple[str, str]]:
        return [(":method", "GET"), (":scheme", "https"), (":authority", self._host), (":path", self._target)]

    def response(self) -> bytes:
        """The honest response with the file."""
        if self.alpn != "h3":
            return self._content
        return words.headers((":status", "200")) + words.h3(0, self._content)

    def send_stream(self, stream: int, data: bytes, *, fin: bool = False) -> None:
        """Queue stream data after what was sent before."""
        offset = self.offsets.get(stream, 0)
        pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)] or [b""]
        for number, piece in enumerate(pieces):
            last = fin and number == len(pieces) - 1
            self.spaces[ONE_RTT].queue.append(words.stream(stream, piece, offset, fin=last))
            offset += len(piece)
        self.offsets[stream] = offset

    # The flight

    @property
    def _ends_after_flight(self) -> bool:
        """Whether nothing honest follows the flight, which was sent."""
        return bool(self.flight.get("alone")) and self.fired is not None

    def _end(self) -> float | None:
        """When a connection ends after whose flight nothing honest follows; None while it goes on."""
        if not self._ends_after_flight or self._pending or self.fired is None:
            return None
        return max(self.fired + 2 * self._patience, self.continues or 0.0)

    def own(self, number: int) -> int:
        """The ID of this endpoint's bidirectional stream with a number from 0."""
        return 4 * number + (0 if self.is_client else 1)

    def own_uni(self, number: int) -> int:
        """The ID of this endpoint's unidirectional stream with a number from 0."""
        return self.own(number) + 2

    def their(self, number: int) -> int:
        """The ID of the other endpoint's bidirectional stream."""
        return 4 * number + (1 if self.is_client else 0)

    def their_uni(self, number: int) -> int:
        """The ID of the other endpoint's unidirectional stream."""
        return self.their(number) + 2

    def more(self, stream: int, data: bytes, *, fin: bool = False) -> bytes:
        """A STREAM frame with the next data of a stream."""
        offset = self.offsets.get(stream, 0)
        self.offsets[stream] = offset + len(data)
        if fin:
            self.taken.add(stream)
        return words.stream(stream, data, offset, fin=fin)

    def retire(self, sequence: int) -> bytes:
        """RETIRE_CONNECTION_ID. This endpoint goes on with another ID when it retires its own destination."""
        if sequence == 0 and self.ids:
            self.dcid = self.ids[0]
        return words.retire_connection_id(sequence)

    def fresh(self, most: int) -> list[int]:
        """IDs of up to `most` of this endpoint's bidirectional streams that it may open and has not used."""
        allowed = (self.own(number) for number in range(min(self.most_streams, 1 << 16)))
        return list(islice((each for each in allowed if each not in self.offsets), most))

    def pieces(self, stream: int, data: bytes, *, fin: bool = False) -> Series:
        """STREAM frames with the next data of a stream, for several datagrams."""
        cut = [data[at : at + 1000] for at in range(0, len(data), 1000)]
        return Series(self.more(stream, piece, fin=fin and piece is cut[-1]) for piece in cut)

    def head_with(self, *pairs: tuple[str, str]) -> bytes:
        """The honest HEADERS frame of this endpoint, with more field lines."""
        return words.headers(*(self._pseudo() if self.is_client else [(":status", "200")]), *pairs)

    def _setting(self, wanted: int) -> int | None:
        """A setting of the other endpoint; 0 when it has none, None while its SETTINGS are unknown."""
        for stream, received in self.streams.items():
            if stream & 2 and received.data[:2] == b"\x00\x04":
                buffer = Buffer(data=bytes(received.data[2:]))
                body = Buffer(data=buffer.pull_bytes(buffer.pull_uint_var()))
                pairs = {}
                while not body.eof():
                    kind = body.pull_uint_var()
                    pairs[kind] = body.pull_uint_var()
                return pairs.get(wanted, 0)
        return None

    def stream(self, stream: int, data: bytes = b"", offset: int = 0, **others: Any) -> bytes:
        """A STREAM frame. Honest traffic doesn't use the stream afterwards."""
        self.offsets[stream] = max(self.offsets.get(stream, 0), offset + len(data))
        self.taken.add(stream)
        return words.stream(stream, data, offset, **others)

    def reset_stream(self, stream: int, code: int, final_size: int) -> bytes:
        """RESET_STREAM. Honest traffic doesn't use the stream afterwards."""
        self.offsets.setdefault(stream, 0)
        self.taken.add(stream)
        return words.reset_stream(stream, code, final_size)

    def _value(self, text: str, default: Any = None, **others: Any) -> Any:
        """The value of an expression of a flight, in the vocabulary and with the state of this connection. An
        expression without a value ends the connection."""
        names = (
            words.WORDS
            | {
                "own": self.own,
                "own_uni": self.own_uni,
                "their": self.their,
                "their_uni": self.their_uni,
                "more": self.more,
                "stream": self.stream,
                "reset_stream": self.reset_stream,
                "retire_connection_id": self.retire,
                "pieces": self.pieces,
                "head": self.head_with(),
                "head_with": self.head_with,
                "offset": lambda stream: self.offsets.get(stream, 0),
                "retried": self.retried,
                "early_keys": self.spaces[EARLY].keys.send.is_valid(),
                "early_accepted": self._tls is not None and self._tls.early_data_accepted,
                "greases": self.theirs["grease_quic_bit"] != 0,
                "setting": self._setting,
                "theirs_qpack": self._setting(_TABLE_CAPACITY) != 0,
                "theirs_blocked": self._setting(_BLOCKED_STREAMS),
                "fresh": self.fresh,
                "most_streams": self.most_streams,
                "request": self.request() if self.is_client else b"",
                "turn": self.turns - 1,
                "largest_received": max(self.spaces[INITIAL].received, default=0),
                "peer": SimpleNamespace(**self.theirs),
                "scid": self.scid,
                "dcid": self.dcid,
                "odcid": self.odcid,
                "token": self.token,
                "ids": self.ids,
                "new_tokens": self.new_tokens,
                "before": self.before,
                "challenges": self.challenges,
                "next_number": self.spaces[ONE_RTT].number,
                "next_handshake": self.spaces[HANDSHAKE].number,
                "crypto_sent": {name: space.sent for name, space in self.spaces.items()},
                "pseudo": self._pseudo(),
                "random": self._rng,
            }
            | others
        )
        try:
            return eval(text, {"__builtins__": {}, **names})  # the rows are a part of this program
        except Exception as error:  # an expression can raise anything
            self.mistake, self.done = f"`{text}`: {error}", True
            return default

    def _reach(self, state: str, now: float) -> bool:
        """Begin the flight when it waits for `state`. Returns whether it did."""
        if state != self.flight.get("when", "confirmed") or self.fired is not None or not self._pending:
            return False
        if "needs" in self.flight and state in ("initial", "handshake") and not self.learned:
            return False  # the other endpoint's parameters are still on their way
        if "theirs_" in self.flight.get("needs", "") and self._setting(_TABLE_CAPACITY) is None:
            return True  # so are its SETTINGS: honest traffic waits for them
        awaited = {"ids": self.ids, "challenges": self.challenges}
        if any(name in self.flight.get("needs", "") and not known for name, known in awaited.items()):
            self._awaits = self._awaits or now + 2 * self._patience
            if now < self._awaits:
                return True
        self._awaits = None
        if "needs" in self.flight and not self._value(self.flight["needs"]):
            self.applies, self._pending, self.moved = False, [], False
            return False
        self.fired = now
        self.flush(now, hold=state in ("initial", "handshake"))
        if self.flight.get("deaf"):
            self._deadline = None
        self._fire(now)
        self.continues = self._patience + now if state not in ("first", "initial-sent") else None
        return True

    def _fire(self, now: float) -> None:
        """Send the flight up to its next pause. A flight that can't be made ends, with its trouble in the log."""
        try:
            self._send_pending(now)
        except Exception as error:  # a packet of a flight may be one that can't be sealed
            self.trouble, self._pending = f"{type(error).__name__}: {error}", []
        if not self._pending:
            self._ready_at = None
            self.continues = now + self._patience

    def _send_pending(self, now: float) -> None:
        while self._pending:
            self.turns += 1
            value = self._value(self._pending.pop(0))
            if isinstance(value, Wait):
                self._ready_at = now + value.seconds
                return
            if isinstance(value, Series):
                self._pending[:0] = [repr(bytes(each)) for each in value]
                continue
            default = {"initial": INITIAL, "initial-sent": INITIAL, "handshake": HANDSHAKE}
            parts = value if isinstance(value, list) else [value]
            if wrong := [part for part in parts if not isinstance(part, bytes | Packet | Raw)]:
                self.mistake = self.mistake or f"{wrong[0]!r} is no frames, no packet and no raw datagram"
                self._pending, self.done = [], True
                return
            space = default.get(self.flight.get("when", "confirmed"), ONE_RTT)
            before = len(self.outbox)
            self.emit([Packet(space, part) if isinstance(part, bytes) else part for part in parts])
            self._log(now, before)
            if "times" in self.flight and self._pending and self.turns % _BURST == 0:
                self._ready_at = now + _PAUSE
                return

    def _log(self, now: float, before: int) -> None:
        """Note the datagrams after the first `before` as the flight. Of a flood, the first and the last ones."""
        self.fired = now if self.fired is None else self.fired
        elsewhere, added = self.outbox[-1][1], len(self.outbox) - before
        if not self.sent:
            self._emitted[elsewhere] = added
        self.count = self._emitted[elsewhere]
        if "times" in self.flight:
            del self.sent[_BURST:]
        self.sent += [{"time": now, "bytes": data.hex(), "packets": self.sealed} for data, _ in self.outbox[before:]]

    # Sending

    def emit(self, parts: Sequence[Packet | Raw]) -> None:
        """Send one datagram of these packets. Datagrams with an Initial packet are padded (RFC 9000 §14.1)."""
        padded = any(isinstance(part, Packet) and part.space == INITIAL for part in parts)
        padded &= not self.flight.get("small")
        usual = {"dcid": self.dcid, "scid": self.scid, "version": self.version}
        usual["token"] = self.token if self.is_client else b""
        data, self.sealed = b"", []
        for part in parts:
            if isinstance(part, Raw):
                data += part.data
                continue
            at_least = _ROOM - len(data) if padded and part is parts[-1] else 0
            packet, number = seal(part, self.spaces, usual, at_least=at_least)
            data += packet
            self.sealed.append({"space": _SPACES[part.space], "number": number})
        elsewhere = any(
            part.elsewhere if isinstance(part, Raw) else part.changes.get("elsewhere", self.moved) for part in parts
        )
        self.outbox.append((data, elsewhere))
        self._emitted[elsewhere] += 1

    def flush(self, now: float, *, hold: bool = False) -> None:
        """Send what waits. `hold`: nothing of the handshake space, which waits for the end of the flight."""
        held = hold or (
            self.flight.get("when") in ("initial", "handshake")
            and self.fired is not None
            and self.continues is not None
            and now < self.continues
        )
        # Beside `send`, changes prepare the flight.
        alters = "send" not in self.flight and not self.flight.keys().isdisjoint(_ALTERING)
        while not self.done and not (self._ends_after_flight and not alters and not self._pending):
            parts: list[Packet] = []
            room = _ROOM - 100
            for name in (INITIAL, HANDSHAKE, ONE_RTT):
                space = self.spaces[name]
                if not space.keys.send.is_valid() or (held and name == HANDSHAKE):
                    continue
                payload, frames = acknowledge(space), []
                while space.queue and len(payload) + len(space.queue[0]) <= room:
                    frames.append(space.queue.pop(0))
                    payload += frames[-1]
                if payload:
                    if frames:
                        space.unacked[space.number] = frames
                        self._deadline = self._deadline or now + _PTO
                    parts.append(Packet(name, payload))
                    room -= len(payload) + 60
            if not parts:
                return
            before = len(self.outbox)
            self.emit(parts)
            begun = self.token or "retry_token" not in self.flight
            if alters and begun and any(part.space != ONE_RTT and 0x06 in part.payload for part in parts):
                self._log(now, before)

    def timer(self) -> float:
        """The time at which `elapse` has work. It is never in the past after `elapse`: the caller would use a core."""
        times = [self.continues if self._ready_at is None else self._ready_at, self._deadline, self._awaits]
        times.append(self._end())
        return min((each for each in times if each is not None and not self.done), default=math.inf)

    def elapse(self, now: float) -> None:
        """Do what was waiting for this time."""
        if self.done:
            return
        if self._ready_at is not None and now >= self._ready_at:
            self._fire(now)
        if self.continues is not None and now >= self.continues and self._ready_at is None:
            self.continues = None
        if self._deadline is not None and now >= self._deadline:
            self._backoff += 1
            waiting = False
            for space in self.spaces.values():
                frames = [each for listed in space.unacked.values() for each in listed]
                space.queue, space.unacked = frames + space.queue, {}
                waiting |= bool(frames)
            self._deadline = now + _PTO * 2**self._backoff if waiting and self._backoff < 5 else None
        self._states(now)
        self.flush(now)

    def summary(self) -> dict[str, Any]:
        """What this endpoint did and saw, for the log. The verdict uses only which connection it was, and which
        datagrams were its flight."""
        return {
            "flight": self.flight.get("name", ""),
            "role": "client" if self.is_client else "server",
            "odcid": self.odcid.hex(),
            "began": self.began,
            "fired": self.fired,
            "sent": self.sent,
            "count": self.count,
            "confirmed": self.confirmed,
            "answered": self.answered,
            "closed": self.closed,
            "trouble": self.trouble,
            "applies": self.applies,
            "knows": bool(self._value(self.flight.get("knows", "False"))),
            "mistake": self.mistake,
            "requested": self.requested,
        }
