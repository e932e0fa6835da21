"""The facts that checks of test cases need, on real recordings with and without them."""

from pathlib import Path

import pytest

from runner.decode.tables import decode_capture
from runner.model.facts import ConnectionFacts
from runner.trace.establish import facts

TESTS = Path(__file__).parent.parent
OWN, DECODERS = TESTS / "trace" / "recordings", TESTS / "decode" / "recordings"


def _connections(folder: Path) -> tuple[ConnectionFacts, ...]:
    (capture,) = folder.glob("left.pcap" if folder.parent == DECODERS else "client.pcap")
    return facts(decode_capture(capture, sorted(folder.glob("*keys.log"))), None).connections


def test_resumption_and_zero_rtt_of_quic_go() -> None:
    first, second = _connections(OWN / "quic-go_zerortt")
    assert (first.certificate_sent, first.resumed) == (True, False)
    assert (second.certificate_sent, second.resumed) == (False, True)
    assert (first.early_data_offered, first.early_data_accepted) == (False, None)
    assert second.early_data_offered
    assert second.early_data_accepted
    # 250-character names: each request that went in 0-RTT has all its bytes there.
    early = [stream for stream in second.request_streams if stream.early_data]
    assert len(early) == second.early_data_requests > 0
    assert len(second.request_streams) + len(first.request_streams) == 40
    assert second.initial_max_streams_bidi is not None
    assert second.max_streams_bidi is not None
    assert second.max_streams_bidi > second.initial_max_streams_bidi
    assert second.max_concurrent_streams > 1


def test_retry_of_quic_go_whose_client_hello_fills_two_packets() -> None:
    (connection,) = _connections(OWN / "quic-go_retry")
    assert connection.retries == 2  # one Retry for each of the two datagrams
    assert connection.retry_token_echoed
    assert connection.packet_number_reset is False
    assert connection.handshake_completed


@pytest.mark.parametrize("stack", ["aioquic", "quinn"])
def test_key_update_by_the_client_is_followed_by_the_server(stack: str) -> None:
    (updated,) = _connections(DECODERS / f"{stack}_keyupdate")
    assert (updated.client_key_updates, updated.server_key_updates) == (1, 1)
    (plain,) = _connections(DECODERS / f"{stack}_transfer")
    assert (plain.client_key_updates, plain.server_key_updates) == (0, 0)


def test_compatible_version_negotiation_ends_in_version_2() -> None:
    (connection,) = _connections(DECODERS / "aioquic_v2")
    assert (connection.original_version, connection.version) == (0x1, 0x6B3343CF)
    assert connection.version_negotiations == ()


def test_an_unknown_version_is_answered_by_version_negotiation() -> None:
    (connection,) = _connections(DECODERS / "aioquic_versionnegotiation")
    assert (connection.original_version, connection.version) == (0x1A2A3A4A, 0x1)
    (answer,) = connection.version_negotiations
    assert answer.offered == 0x1A2A3A4A
    assert answer.listed is not None
    assert 0x1 in answer.listed
    # Times count from the client's first packet, which had the unknown version: a user waits for the negotiation, too.
    assert connection.first_initial is not None
    assert connection.first_initial > 0.0
    assert connection.handshake_completed


@pytest.mark.parametrize(("stack", "marks"), [("quinn", True), ("aioquic", False)])
def test_ecn_is_seen_where_a_stack_uses_it(stack: str, marks: bool) -> None:
    (connection,) = _connections(DECODERS / f"{stack}_transfer")
    assert connection.client_ecn.sent is not None
    assert connection.client_ecn.received is not None
    assert (connection.client_ecn.sent.ect > 0) is marks
    assert (connection.client_ecn.ack_frames_with_counts > 0) is marks
    assert connection.client_ecn.reported.ect <= connection.client_ecn.received.ect
    if marks:
        assert connection.client_ecn.reported.ect > 0
    assert connection.server_ecn.sent is None  # there is no capture at the server's end


@pytest.mark.parametrize("stack", ["aioquic", "quic-go", "quinn"])
def test_a_plain_transfer_has_none_of_all_that(stack: str) -> None:
    (connection,) = _connections(DECODERS / f"{stack}_transfer")
    assert (connection.version, connection.original_version, connection.alpn) == (1, 1, "hq-interop")
    assert (connection.retries, connection.version_negotiations) == (0, ())
    assert connection.retry_token_echoed is None
    assert connection.packet_number_reset is None
    assert connection.handshake_completed
    assert connection.certificate_sent
    assert len(connection.offered_suites) > 1
    (stream,) = connection.request_streams
    assert stream.server_bytes == stream.server_fin == 20 * 1024
    assert all(close.code == 0 for close in connection.closes)
    assert len(connection.paths) == 1
    assert (connection.client_key_updates, connection.server_key_updates) == (0, 0)


def test_offered_suites_are_all_those_of_the_client_hello() -> None:
    (connection,) = _connections(DECODERS / "quic-go_transfer")
    assert connection.offered_suites == (0x1301, 0x1302, 0x1303)
    assert connection.suite == "TLS_AES_128_GCM_SHA256"
