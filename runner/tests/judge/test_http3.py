"""Rules of HTTP/3, QPACK and streams on connections of aioquic with itself: right ones, and some in which an endpoint
breaks a rule behind the first bytes of a stream, or with frames other than STREAM."""

from collections.abc import Callable
from pathlib import Path

import pytest
from aioquic.h3.connection import H3Connection

from runner.judge.job_traces import protocol_findings
from runner.tests.decode.decoded import decode_pairs
from runner.tests.decode.pairs import Pair, protected

REQUEST = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"server4"), (b":path", b"/file")]
# A second request refers to the entry of the dynamic table that the first inserts.
REPEATED = [(b"x-repeated", b"a value that is worth an entry of the dynamic table")]
BODY = bytes(30_000)

Break = Callable[[Pair, int], None]


def transfer(
    folder: Path,
    *,
    break_rule: Break | None = None,
    length: bytes = b"30000",
    request: list[tuple[bytes, bytes]] = REQUEST,
) -> set[tuple[str, str]]:
    """The rules that are broken in a connection with three requests. `break_rule` acts on the server's side of the
    last stream before the response ends. `length`: Content-Length of the last response. `request`: fields of the last
    request."""
    options = {"alpn_protocols": ["h3"]}
    pair = Pair(client_options=options, server_options=options).connect()
    assert pair.server is not None
    client, server = H3Connection(pair.client), H3Connection(pair.server)
    pair.exchange()
    _read(pair, client, server)
    for number in range(3):
        stream = pair.client.get_next_available_stream_id()
        client.send_headers(stream, [*(request if number == 2 else REQUEST), *REPEATED], end_stream=True)
        pair.exchange()
        _read(pair, client, server)
        declared = length if number == 2 else b"30000"
        server.send_headers(stream, [(b":status", b"200"), (b"content-length", declared), *REPEATED])
        server.send_data(stream, BODY, end_stream=False)
        pair.exchange(20)
        if break_rule is not None and number == 2:
            break_rule(pair, stream)
        pair.server.send_stream_data(stream, b"", end_stream=True)
        pair.exchange(20)
        _read(pair, client, server)
    trace = decode_pairs(folder, [pair])
    return {(finding.code, finding.role) for finding in protocol_findings(trace, trace)}


def _read(pair: Pair, client: H3Connection, server: H3Connection) -> None:
    """Hand the events of the transport to HTTP/3. What a peer does wrong is not the subject here."""
    for quic, http in ((pair.client, client), (pair.server, server)):
        while quic is not None and (event := quic.next_event()) is not None:
            http.handle_event(event)


def test_a_right_connection_with_a_dynamic_table_breaks_no_rule(tmp_path: Path) -> None:
    assert transfer(tmp_path) == set()


def test_a_wrong_content_length_is_found(tmp_path: Path) -> None:
    assert transfer(tmp_path, length=b"30001") == {("rfc9114-4.1.2-content-length-wrong", "server")}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ([(b":scheme", b"https"), (b":path", b"/"), (b"host", b"server4")], set()),
        ([(b":scheme", b"urn"), (b":path", b"/")], set()),
        ([(b":scheme", b"https"), (b":path", b"/")], {("rfc9114-4.3-pseudo-headers", "client")}),
        ([(b":scheme", b"http"), (b":path", b"/")], {("rfc9114-4.3-pseudo-headers", "client")}),
    ],
)
def test_a_request_of_http_names_its_authority(
    tmp_path: Path, fields: list[tuple[bytes, bytes]], found: set[tuple[str, str]]
) -> None:
    assert transfer(tmp_path, request=[(b":method", b"GET"), *fields]) == found


def _server_sends(data: bytes) -> Break:
    def send(pair: Pair, stream: int) -> None:
        assert pair.server is not None
        pair.server.send_stream_data(stream, data)

    return send


def _opens(data: bytes, *, by_client: bool) -> Break:
    def send(pair: Pair, _: int) -> None:
        quic = pair.client if by_client else pair.server
        assert quic is not None
        quic.send_stream_data(quic.get_next_available_stream_id(is_unidirectional=True), data)

    return send


@pytest.mark.parametrize(
    ("break_rule", "rule", "role"),
    [
        (_server_sends(b"\x04\x00"), "rfc9114-7.2.4-settings-on-request", "server"),
        (_server_sends(b"\x06\x01x"), "rfc9114-7.2.8-http2-frame", "server"),
        (_server_sends(b"\x21\x40\x50abc"), "rfc9114-7.1-frame-cut-off", "server"),
        (_server_sends(b"\x05\x06\x09\x00\x00\xd1\xd7\xc1"), "rfc9114-7.2.5-push-id-above-limit", "server"),
        (_opens(b"\x02", by_client=True), "rfc9204-4.2-two-encoder-streams", "client"),
        (_opens(b"\x03", by_client=False), "rfc9204-4.2-two-decoder-streams", "server"),
    ],
)
def test_a_broken_rule_behind_the_first_bytes_is_found(tmp_path: Path, break_rule: Break, rule: str, role: str) -> None:
    found = transfer(tmp_path, break_rule=break_rule)
    assert (rule, role) in found
    assert {each for _, each in found} <= {role, "client"}


@pytest.mark.parametrize(
    ("frame", "rule"),
    [
        ("04 7202 00 00", "rfc9000-4.6-too-many-streams"),  # RESET_STREAM of unidirectional stream 12802
        ("15 7202 00", "rfc9000-4.6-too-many-streams"),
        ("05 7200 00", "rfc9000-4.6-too-many-streams"),  # STOP_SENDING for the client's own bidirectional stream
        ("11 7200 00", "rfc9000-4.6-too-many-streams"),
        ("04 02 00 bfffffff", "rfc9000-4.1-connection-limit"),
        ("04 02 00 bfffffff", "rfc9000-4.1-stream-limit"),
        ("04 02 00 ffffffffffffffff", "rfc9000-4.1-stream-limit"),
    ],
)
def test_frames_other_than_stream_open_streams_and_use_credit(tmp_path: Path, frame: str, rule: str) -> None:
    pair = Pair().connect().request(5000)
    trace = decode_pairs(tmp_path, [pair])
    assert protocol_findings(trace, trace) == ()
    payload = bytes.fromhex(frame)
    pair.records.append(protected(pair, from_client=True, payload=payload))
    trace = decode_pairs(tmp_path, [pair])
    assert (rule, "client") in {(finding.code, finding.role) for finding in protocol_findings(trace, trace)}


def _rules(folder: Path, *payloads: bytes) -> set[str]:
    """The rules that a client breaks that sends these 1-RTT packets after a transfer on stream 0."""
    pair = Pair().connect().request(5000)
    pair.records += [protected(pair, from_client=True, payload=payload) for payload in payloads]
    trace = decode_pairs(folder, [pair])
    return {finding.code for finding in protocol_findings(trace, trace) if finding.role == "client"}


def test_the_201st_reset_stream_counts(tmp_path: Path) -> None:
    others = b"".join(b"\x04" + (1 << 14 | 4 * number).to_bytes(2) + b"\0\0" for number in range(1, 202))
    assert "rfc9000-3.3-stream-after-reset" in _rules(tmp_path, others, b"\x04\0\0\0", b"\x08\0x")


def test_the_21st_unknown_frame_counts(tmp_path: Path) -> None:
    unknown = [b"\0\0\x40\x7b"] * 20
    assert _rules(tmp_path, *unknown, b"\0\0\0\x10") == {"rfc9000-12.4-unknown-frame", "rfc9000-12.4-malformed-frame"}
