"""The hostile peer against aioquic, without sockets: time is calculated, packets go into a capture as in a lane.

`python -m runner.tests.hostile.in_memory NAME [OPTION=VALUE …]` prints how aioquic meets a flight, in both roles. The
options are aioquic's: `max_datagram_frame_size=1200`, `connection_id_length=0`.
"""

import importlib
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aioquic.asyncio.server import _encode_invalid_token_close
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import HandshakeCompleted, ProtocolNegotiated, QuicEvent, StreamDataReceived
from aioquic.quic.packet import encode_quic_retry, encode_quic_version_negotiation, pull_quic_header
from aioquic.quic.retry import QuicRetryTokenHandler

from runner.check.flight_verdicts import FlightResult, Sample, judge_flights
from runner.check.flights import LIST, load_flights
from runner.check.meeting import select_flights
from runner.decode.tables import decode_capture
from runner.errors import UsageError
from runner.inputs.inputs import certificates
from runner.model.stack import Role
from runner.tests.decode.rewrite import Record, write_pcap

sys.path.insert(0, str(LIST.parent))
_peer: Any = importlib.import_module("peer")

try:
    FLIGHTS = load_flights()
except UsageError as error:
    raise (SystemExit(str(error)) if __name__ == "__main__" else error) from None
ROWS: dict[str, dict[str, Any]] = importlib.import_module("endpoint").rows()
_STEP = 0.001  # seconds from one endpoint to the other
_LONGEST = 12.0
_CONTENT = b"content " * 128  # more than a path gets that is not validated
_STOP = 2.0
ADDRESS = ("10.0.0.2", 40000)
_UNKNOWN = 0x1A2A3A4A
_VERSIONS: dict[str, Any] = {"original_version": _UNKNOWN, "supported_versions": [_UNKNOWN, 1]}
_OPTIONS = {"versionnegotiation": _VERSIONS}  # those that a client needs for a case
_FILES = certificates().files()
_IDENTITY = _peer.Identity(_FILES["cert.pem"], _FILES["priv.key"])

Lose = Callable[[bytes], bool]
Take = Callable[[dict[bytes, Any], bytes], Any]


class _Gate:
    """The address validation of aioquic, which is a part of its server for asyncio."""

    def __init__(self) -> None:
        self._tokens = QuicRetryTokenHandler()

    def answer(self, data: bytes, address: tuple[str, int], quic: QuicConnection, now: float) -> bytes:
        """What a server sends for a datagram that its connection doesn't get: a Retry packet or CONNECTION_CLOSE.
        Nothing: the connection gets it."""
        if quic._network_paths:
            return b""
        header = pull_quic_header(_peer.Buffer(data=data), host_cid_length=8)
        ours, theirs = header.destination_cid, header.source_cid
        if not header.token:
            scid = os.urandom(8)
            token = self._tokens.create_token(
                address=address, original_destination_connection_id=ours, retry_source_connection_id=scid, now=now
            )
            return encode_quic_retry(1, scid, theirs, ours, token)
        try:
            odcid = self._tokens.validate_token(address=address, destination_cid=ours, token=header.token, now=now)
        except ValueError:
            return _encode_invalid_token_close(1, ours, theirs)
        quic._original_destination_connection_id, quic._retry_source_connection_id = odcid, ours
        return b""


class Tested:
    """aioquic as the endpoint under test, with HTTP/0.9 or HTTP/3."""

    def __init__(
        self,
        role: Role,
        alpn: str,
        folder: Path,
        odcid: bytes,
        connection: type[QuicConnection],
        tickets: dict[bytes, Any],
        take: Take,
        now: float,
        **options: Any,
    ) -> None:
        configuration = QuicConfiguration(
            is_client=role is Role.CLIENT, alpn_protocols=[alpn], server_name="server4", **options
        )
        if role is Role.SERVER:
            for name, content in _FILES.items():
                (folder / name).write_bytes(content)
            configuration.load_cert_chain(folder / "cert.pem", folder / "priv.key")
            self.quic = connection(
                configuration=configuration,
                original_destination_connection_id=odcid,
                session_ticket_fetcher=lambda label: take(tickets, label),
                session_ticket_handler=lambda new: tickets.__setitem__(new.ticket, new),
            )
        else:
            configuration.verify_mode = 0
            configuration.session_ticket = next(iter(tickets.values()), None)
            self.quic = connection(
                configuration=configuration, session_ticket_handler=lambda new: tickets.update({b"": new})
            )
            self.quic.connect(ADDRESS, now=now)
        self.role, self.alpn = role, alpn
        self.http: H3Connection | None = None
        self.exit_code, self.early = 1, bool(configuration.session_ticket)
        if self.early:
            self._request()

    def work(self) -> None:
        """Handle all events."""
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, ProtocolNegotiated) and self.alpn == "h3":
                self.http = H3Connection(self.quic)
            if isinstance(event, HandshakeCompleted) and self.role is Role.CLIENT and not self.early:
                self._request()
            if self.http is not None:
                self._http3(self.http, event)
            elif isinstance(event, StreamDataReceived) and event.end_stream and not event.stream_id % 4:
                self._answered(event.stream_id)

    def _request(self) -> None:
        stream = self.quic.get_next_available_stream_id()
        pairs = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"server4"), (b":path", b"/file")]
        if self.http is not None:
            self.http.send_headers(stream, pairs, end_stream=True)
        else:
            self.quic.send_stream_data(stream, b"GET /file\r\n", end_stream=True)

    def _http3(self, http: H3Connection, event: QuicEvent) -> None:
        for each in http.handle_event(event):
            if isinstance(each, HeadersReceived) and self.role is Role.SERVER:
                with suppress(RuntimeError):  # its client has stopped the stream
                    http.send_headers(each.stream_id, [(b":status", b"200")])
                    http.send_data(each.stream_id, _CONTENT, end_stream=True)
            elif getattr(each, "stream_ended", False):
                self._end(0x100)

    def _answered(self, stream: int) -> None:
        if self.role is Role.SERVER:
            self.quic.send_stream_data(stream, _CONTENT, end_stream=True)
        else:
            self._end(0)

    def _end(self, code: int) -> None:
        if self.role is Role.CLIENT:
            self.exit_code = 0
            self.quic.close(code)


def meet(
    name: str,
    role: Role,
    folder: Path,
    *,
    lose: Lose = lambda _: False,
    connection: type[QuicConnection] = QuicConnection,
    earlier: bytes = b"",
    stopped: bool = False,
    usage: Sequence[Sample] = (),
    take: Take = dict.get,
    **options: Any,
) -> list[FlightResult]:
    """Let aioquic in `role` meet a flight, and judge it. `lose`: datagrams of the peer that don't arrive. `earlier`: a
    datagram to the server of an earlier connection, from the same port. `stopped`: aioquic is stopped at the end, and
    closes the connection. `usage`: memory and CPU time of aioquic, where its honest connection is from -2 to -1.
    `take`: how the server takes a ticket from those that it gave. `options`: of QuicConfiguration."""
    row, secrets, tickets, client = ROWS[name], list[str](), dict[bytes, Any](), role is Role.CLIENT
    gate = _Gate() if row.get("case") == "retry" and not client else None
    records = [_record(-60.0, earlier, from_client=True)] if earlier else []
    alpn = "h3" if row.get("case") == "http3" else "hq-interop"
    options |= _OPTIONS.get(row.get("case", ""), {})

    def exchange(flight: dict[str, Any], now: float, **others: Any) -> tuple[Any, Tested, float]:
        """A connection from `now` on: the peer, aioquic, and the time of its end."""
        if "before" in flight:
            others["before"], _, now = exchange(flight["before"], now)
        peer = _peer.Peer(
            flight, is_client=not client, alpn=alpn, now=now, patience=0.25, identity=_IDENTITY, content=b"content",
            target="/file", key_log=secrets.append, **others,
        )  # fmt: skip
        tested = Tested(role, alpn, folder, peer.odcid, connection, tickets, take, now, **options)
        longest = now + (_STOP if stopped else _LONGEST)
        while now < longest:
            tested.work()
            if client or tested.quic._network_paths:
                for data, to in tested.quic.datagrams_to_send(now):
                    records.append(_record(now, data, from_client=client, port=ADDRESS[1] if client else to[1]))
                    _deliver(data, peer, tested, now + _STEP, records)
            moved, peer.outbox = peer.outbox, []
            now += _STEP
            for data, elsewhere in moved:
                if not lose(data):
                    _take(data, ADDRESS[1] + elsewhere, peer, tested, gate, now, records)
            if not moved:
                if peer.done:
                    break
                timer = tested.quic.get_timer()
                now = max(now, min(peer.timer(), longest if timer is None else timer, longest))
                peer.elapse(now)
                assert peer.outbox or peer.timer() > now, "the peer would use a core while it waits"
                if timer is not None and now >= timer:
                    tested.quic.handle_timer(now)
        assert not peer.done or peer.timer() > longest, "the peer would use a core when it has ended"
        return peer, tested, now

    began, others = 0.0, dict[str, Any]()
    if row.get("resumes"):
        own: dict[str, Any] = {"tickets": {}} if client else {}
        honest, _, began = exchange({"parameters": row.get("earlier", {})}, 0.0, **own)
        others = own or {"ticket": honest.new_tickets[-1]}
    if row.get("replays"):
        others["replayed"], _, began = exchange({}, began, **others)
    peer, tested, now = exchange(row, began, **others)
    if stopped:
        tested.quic.close(2)
        records += [_record(now + 1, data, from_client=client) for data, _ in tested.quic.datagrams_to_send(now + 1)]
    log: list[dict[str, Any]] = [{**peer.summary(), "times": [began, now, now + 1]}]
    if client:
        ended = getattr(tested.quic, "left", None) or now
        log.append({"flight": "", "exit": 0, "times": [-2.0, -1.0]})
        log.append({"flight": name, "exit": tested.exit_code, "ended": ended, "times": [began, now]})
    (folder / "keys.log").write_text("".join(secrets))
    capture = write_pcap(folder / "end.pcap", records)
    return judge_flights([FLIGHTS[name]], role, log=log, capture=capture, key_logs=[folder / "keys.log"], usage=usage)


def _deliver(data: bytes, peer: Any, tested: Tested, now: float, records: list[Record]) -> None:
    """Give a datagram to the peer. One of an unknown version is answered by Version Negotiation, as the peer's image
    does."""
    if not data[0] & 0x80 or int.from_bytes(data[1:5]) != _UNKNOWN:
        peer.receive(data, now)
        return
    dcid, rest = data[6 : 6 + data[5]], data[6 + data[5] :]
    answer = encode_quic_version_negotiation(dcid, rest[1 : 1 + rest[0]], [1])
    records.append(_record(now, answer, from_client=False))
    tested.quic.receive_datagram(answer, ADDRESS, now)


def _take(
    data: bytes, port: int, peer: Any, tested: Tested, gate: _Gate | None, now: float, records: list[Record]
) -> None:
    """Give a datagram of the peer to aioquic, if the server's address validation lets it pass."""
    records.append(_record(now, data, from_client=tested.role is Role.SERVER, port=port))
    if gate is not None and (answer := gate.answer(data, (ADDRESS[0], port), tested.quic, now)):
        records.append(_record(now, answer, from_client=False, port=port))
        peer.receive(answer, now)
    elif port == ADDRESS[1] or peer.moved or tested.quic._network_paths:
        tested.quic.receive_datagram(data, (ADDRESS[0], port), now)


def _record(now: float, data: bytes, *, from_client: bool, port: int = ADDRESS[1]) -> Record:
    """An Ethernet frame with the datagram, as in a lane. `port`: the client's."""
    ends = [(b"\x0a\0\0\1", port), (b"\x0a\0\0\2", 443)]
    (source, source_port), (target, target_port) = ends if from_client else reversed(ends)
    udp = struct.pack(">HHHH", source_port, target_port, 8 + len(data), 0) + data
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0) + source + target
    return Record(round((1_700_000_000 + now) * 1e9), bytes(12) + b"\x08\x00" + ip + udp)


def _packets(folder: Path, sent: Sequence[int]) -> Iterator[str]:
    """A line for each packet. An arrow marks the datagrams `sent`, which are those of the flight."""
    trace = decode_capture(folder / "end.pcap", [folder / "keys.log"])
    records, frames = trace.datagrams["record"].to_pylist(), trace.frames.to_pylist()
    for number, packet in enumerate(trace.packets.to_pylist()):
        record, names = records[packet["datagram"]], [row["name"] for row in frames if row["packet"] == number]
        sender = "server" if packet["sender"] else "client"
        yield f"  {'→' if record in sent else ' '} {record} {sender} {packet['type']}: {', '.join(names)}"


if __name__ == "__main__":
    _options: dict[str, Any] = {key: int(value) for key, _, value in (each.partition("=") for each in sys.argv[2:])}
    for _flight in select_flights(FLIGHTS, [sys.argv[1]]):
        for _role in _flight.roles:
            with tempfile.TemporaryDirectory() as _folder:
                for _result in meet(_flight.name, _role, Path(_folder), **_options):
                    print(f"{_flight.name}, {_role.value}: {_result.verdict}: {_result.seen}. {_result.why}")
                    print("\n".join(_packets(Path(_folder), _result.sent)))


class Polite(QuicConnection):
    """Answers a CONNECTION_CLOSE with one of its own."""

    def _handle_connection_close_frame(self, _: Any, __: int, buf: Any) -> None:
        buf.pull_bytes(buf.capacity - buf.tell())
        self.close(0)


def one(results: list[FlightResult]) -> FlightResult:
    assert len(results) == 1
    return results[0]
