"""Recordings that were changed on purpose, through the whole judge. Earlier, weaker checks judged them differently.
Rows in tables of real recordings are changed; without captures the judge reads the tables.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from runner.decode.columns import CLIENT, SERVER
from runner.decode.tables import TABLES, load_tables, save_tables
from runner.judge.judges import analyse
from runner.model.result import Artifacts, Outcome, Result
from runner.model.run import Job
from runner.plan.catalog import Catalog
from runner.tests.judge.test_analyse import edit
from runner.tests.recordings.conformance import BAD, GOOD, GOOD_ONES, changed

Recorded = Callable[[str], Artifacts]
Row = dict[str, Any]
Tables = dict[str, list[Row]]
Change = Callable[[Tables], None]
JOB = Job(server="s", client="c", case="x", iteration=1)
TRANSFER = (20480, 30720, 51200)


def judge(catalog: Catalog, artifacts: Artifacts, case: str, *sizes: int, **changes: Any) -> Result:
    record = changed(catalog.cases[case].record(), {**({"file_sizes": sizes} if sizes else {}), **changes})
    return analyse(JOB, artifacts, catalog.cases[case], record)


def craft(catalog: Catalog, artifacts: Artifacts, case: str, *changes: Change) -> Artifacts:
    """The recording with changed tables on both sides, and no captures."""
    judge(catalog, artifacts, case)
    for tables, capture in (
        (artifacts.client_tables, artifacts.client_capture),
        (artifacts.server_tables, artifacts.server_capture),
    ):
        trace = load_tables(tables)
        rows: Tables = {name: getattr(trace, name).to_pylist() for name in TABLES}
        for change in changes:
            change(rows)
        made = {name: pa.Table.from_pylist(rows[name], schema=schema) for name, schema in TABLES.items()}
        save_tables(replace(trace, **made), tables)
        capture.unlink()
    return artifacts


def codes(result: Result) -> set[str]:
    return {finding.code for finding in result.findings}


def notes(result: Result) -> set[str]:
    return {note.code for note in result.notes}


# HTTP/3


def test_reserved_frames_may_come_before_headers(catalog: Catalog, recorded: Recorded) -> None:
    reserved = b"\x21\x02xx"  # RFC 9114 §7.2.8

    def grease(tables: Tables) -> None:
        for frame in tables["stream_frames"]:
            if frame["stream_id"] % 4 == 0 and frame["offset"] == 0 and frame["data"]:
                frame["data"] = reserved + frame["data"]
                frame["length"] += len(reserved)
            elif frame["stream_id"] % 4 == 0:
                frame["offset"] += len(reserved)

    artifacts = craft(catalog, recorded("quic-go_quinn/http3"), "http3", grease)
    result = judge(catalog, artifacts, "http3", 1024)
    assert not codes(result), result.findings


# Retry


def test_another_token_of_the_same_length_fails(catalog: Catalog, recorded: Recorded) -> None:
    def other_token(tables: Tables) -> None:
        for packet in tables["packets"]:
            if packet["type"] == "initial" and packet["token"]:
                packet["token"] = packet["token"][:-1] + bytes((packet["token"][-1] ^ 1,))

    artifacts = craft(catalog, recorded("quic-go_quinn/retry"), "retry", other_token)
    result = judge(catalog, artifacts, "retry", 1024)
    assert (result.outcome, codes(result)) == (Outcome.FAILED, {"retry-token-not-echoed"})


@pytest.mark.parametrize(("case", "sizes"), [("longrtt", (1024,)), ("goodput", (1024,)), ("ipv6", (1024,))])
def test_a_retry_is_allowed_where_the_contract_does_not_rule_it_out(
    catalog: Catalog, recorded: Recorded, case: str, sizes: tuple[int, ...]
) -> None:
    result = judge(catalog, recorded("quic-go_quinn/retry"), case, *sizes)
    assert "unexpected-retry" not in codes(result)
    assert codes(judge(catalog, recorded("bad/always-retries"), "handshake")) == {"unexpected-retry"}


# Connection IDs


@pytest.mark.parametrize(("next_number", "broken"), [(1, True), (0, False)], ids=["goes-on", "begins-again"])
def test_a_server_keeps_its_source_id_while_its_numbers_go_on(
    catalog: Catalog, recorded: Recorded, next_number: int, broken: bool
) -> None:
    """msquic answers a part of a ClientHello with another source connection ID than the whole."""

    def changed_source(tables: Tables) -> None:
        packets = tables["packets"]
        first, second = [each for each in packets if each["type"] == "initial" and each["sender"] == SERVER][:2]
        first["scid"], first["packet_number"], second["packet_number"] = b"\x07" * 8, 0, next_number

    artifacts = craft(catalog, recorded("aioquic_quic-go/multiconnect"), "handshake", changed_source)
    violations = {each.code for each in judge(catalog, artifacts, "handshake").violations}
    assert ("rfc9000-7.2-server-source-changed" in violations) is broken


# Probes


def initials(tables: Tables) -> list[Row]:
    return [packet for packet in tables["packets"] if packet["type"] == "initial" and packet["sender"] == CLIENT]


def at_once(tables: Tables) -> None:
    """All Initial packets of the client before the server's first packet leave in the same millisecond."""
    answer = next(packet["packet"] for packet in tables["packets"] if packet["sender"] == SERVER)
    early = {initial["datagram"] for initial in initials(tables) if initial["packet"] < answer}
    first = min(tables["datagrams"][datagram]["time_ns"] for datagram in early)
    for datagram in early:
        tables["datagrams"][datagram]["time_ns"] = first + datagram * 1000


def pings(tables: Tables) -> None:
    """Only the first ClientHello is left; later ones are PING frames."""
    hellos = sorted({initial["packet"] for initial in initials(tables)})
    kept = hellos[0]
    for frame in tables["frames"]:
        if frame["packet"] in hellos and frame["packet"] != kept and frame["name"] == "crypto":
            frame.update(name="ping", type=1, offset=None, length=None, payload=None)
    for connection in tables["connections"]:
        connection["client_hello_count"] = 1


def test_client_hellos_at_once_are_no_probe(catalog: Catalog, recorded: Recorded) -> None:
    result = judge(catalog, craft(catalog, recorded("quic-go_quinn/longrtt"), "longrtt", at_once), "longrtt")
    assert (result.outcome, codes(result)) == (Outcome.UNSUPPORTED, {"no-probe"})
    result = judge(catalog, recorded("bad/no-probe"), "longrtt")
    assert (result.outcome, codes(result)) == (Outcome.UNSUPPORTED, {"no-probe"})


def test_a_ping_is_a_probe(catalog: Catalog, recorded: Recorded) -> None:
    result = judge(catalog, craft(catalog, recorded("quic-go_quinn/longrtt"), "longrtt", pings), "longrtt")
    assert (result.outcome, result.findings) == (Outcome.SUCCEEDED, ())


# Closing


def test_a_number_of_an_application_without_codes_is_a_note(catalog: Catalog, recorded: Recorded) -> None:
    result = judge(catalog, recorded("bad/closes-with-error"), "handshake")
    assert (result.outcome, notes(result)) == (Outcome.SUCCEEDED, {"close-code-undefined"})


def test_an_error_of_the_transport_fails(catalog: Catalog, recorded: Recorded) -> None:
    def of_the_transport(tables: Tables) -> None:
        for frame in tables["frames"]:
            if frame["name"] == "application_close":
                frame.update(name="connection_close", type=0x1C)

    result = judge(
        catalog, craft(catalog, recorded("bad/closes-with-error"), "handshake", of_the_transport), "handshake"
    )
    assert (result.outcome, codes(result)) == (Outcome.FAILED, {"closed-with-error"})


def test_a_server_may_repeat_the_close_of_the_clients_application(catalog: Catalog, recorded: Recorded) -> None:
    """APPLICATION_ERROR in a Handshake packet stands for the application's close (RFC 9000 §10.2.3)."""

    def echoed(tables: Tables) -> None:
        close = next(frame for frame in tables["frames"] if frame["name"] == "application_close")
        packet = next(each for each in reversed(tables["packets"]) if each["sender"] != close["sender"])
        row = close | {"sender": packet["sender"], "packet": packet["packet"], "name": "connection_close"}
        row |= {"type": 0x1C, "value": 0x0C, "time_ns": close["time_ns"] + 10**9}
        tables["frames"].append(row)

    artifacts = craft(catalog, recorded("bad/closes-with-error"), "handshake", echoed)
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, result.findings) == (Outcome.SUCCEEDED, ())


def test_a_handshake_counts_whose_client_closes_after_data_at_half_a_round_trip(
    catalog: Catalog, recorded: Recorded
) -> None:
    """The server never gets the Finished, so it sends no HANDSHAKE_DONE and acknowledges no 1-RTT packet."""

    def unfinished(tables: Tables) -> None:
        for frame in tables["frames"]:
            if frame["sender"] == SERVER and frame["name"] == "handshake_done":
                frame.update(name="ping", type=1)
        for frame in tables["ack_frames"]:
            if frame["sender"] == SERVER and frame["space"] == "application":
                frame["connection"] = -1

    artifacts = craft(catalog, recorded("quinn_quinn/handshake"), "handshake", unfinished)
    assert "handshake-count" not in codes(judge(catalog, artifacts, "handshake"))


def test_unsupported_hides_no_broken_rule(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("bad/no-probe")
    assert judge(catalog, artifacts, "longrtt").outcome is Outcome.UNSUPPORTED
    edit(artifacts, lambda evidence: evidence["files"][0].update(equal=False, received=None))
    result = judge(catalog, artifacts, "longrtt")
    assert (result.outcome, codes(result)) == (Outcome.FAILED, {"files-differ", "no-probe"})
    assert result.culprit == "client"


@pytest.mark.parametrize(("handshake", "expected"), [(False, {"path-not-challenged"}), (True, set())])
def test_a_handshake_packet_validates_a_new_address(
    catalog: Catalog, recorded: Recorded, handshake: bool, expected: set[str]
) -> None:
    """A NAT that changes the port during the handshake needs no PATH_CHALLENGE (RFC 9000 §8.1)."""
    good = next(good for good in GOOD if good.case == "rebind-port")

    def unchallenged(tables: Tables) -> None:
        for frame in tables["frames"]:
            if frame["name"] in ("path_challenge", "path_response"):
                frame.update(name="ping", type=1, payload=None)
        known: set[int] = set()
        for packet in tables["packets"]:
            port = tables["datagrams"][packet["datagram"]]["src_port"]
            if packet["sender"] == CLIENT and packet["decrypted"] and port not in known:
                if handshake and known:
                    packet["type"] = "handshake"
                known.add(port)

    artifacts = craft(catalog, recorded(good.path), good.case, unchallenged)
    result = judge(catalog, artifacts, good.case, **good.changes)
    assert codes(result) & {"path-not-challenged"} == expected, result.findings


# Flow control and streams


def raised_limit(tables: Tables) -> None:
    """The client's last frame grants more."""
    row = [frame for frame in tables["frames"] if frame["sender"] == CLIENT and frame["name"] == "ack"][-1]
    row.update(name="max_stream_data", type=0x11, stream_id=0, value=2**40)


@pytest.mark.parametrize("recording", ["quic-go_quic-go", "quinn_quinn", "aioquic_aioquic"])
def test_a_transfer_asks_for_limits_that_move(catalog: Catalog, recorded: Recorded, recording: str) -> None:
    """Files of 100 KiB are below all first limits of these stacks."""
    artifacts = recorded(f"{recording}/transfer")
    result = judge(catalog, artifacts, "transfer", *TRANSFER)
    assert (result.outcome, codes(result)) == (Outcome.UNSUPPORTED, {"limits-never-raised"})
    result = judge(catalog, craft(catalog, artifacts, "transfer", raised_limit), "transfer", *TRANSFER)
    assert (result.outcome, result.findings, result.notes) == (Outcome.SUCCEEDED, (), ())


def test_requests_that_do_not_overlap_are_a_note(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = craft(catalog, recorded("bad/one-at-a-time"), "transfer", raised_limit)
    result = judge(catalog, artifacts, "transfer", 2048, 3072, 5120)
    assert (result.outcome, notes(result)) == (Outcome.SUCCEEDED, {"not-concurrent"})


def test_a_stream_limit_that_is_never_met_asks_nothing(catalog: Catalog, recorded: Recorded) -> None:
    result = judge(catalog, recorded("bad/many-streams"), "multiplexing", *(32,) * 20)
    assert (result.outcome, codes(result)) == (Outcome.UNSUPPORTED, {"stream-limit-not-met"})
    assert notes(result) == {"stream-limit-high"}


# Amplification


def test_a_chain_that_was_not_sent_fails(catalog: Catalog, recorded: Recorded) -> None:
    result = judge(catalog, recorded("quinn_quinn/amplificationlimit"), "amplificationlimit", chain_bytes=7500)
    assert (result.outcome, codes(result)) == (Outcome.FAILED, {"chain-not-sent"})
    assert result.findings[0].role == "server"


def test_a_first_flight_far_below_the_limit_asks_nothing(catalog: Catalog, recorded: Recorded) -> None:
    def smaller(tables: Tables) -> None:
        for datagram in tables["datagrams"]:
            if datagram["sender"] == SERVER:
                datagram["payload_length"] //= 2

    artifacts = craft(catalog, recorded("quinn_quinn/amplificationlimit"), "amplificationlimit", smaller)
    result = judge(catalog, artifacts, "amplificationlimit", chain_bytes=0)
    assert (result.outcome, codes(result)) == (Outcome.UNSUPPORTED, {"limit-not-reached"})


# Migration


def test_a_server_that_never_challenges_a_moved_client_fails(catalog: Catalog, recorded: Recorded) -> None:
    """The client challenges instead, and the server answers: that validates the server's address, not the client's."""

    def turned_round(tables: Tables) -> None:
        for frame in tables["frames"]:
            if frame["name"] in ("path_challenge", "path_response"):
                frame["sender"] = SERVER - frame["sender"]

    bad = next(bad for bad in BAD if bad.name == "keeps-connection-id-client")
    artifacts = recorded(bad.path)
    assert codes(judge(catalog, artifacts, bad.case, **bad.changes)) == {"connection-id-reused"}
    result = judge(catalog, craft(catalog, artifacts, bad.case, turned_round), bad.case, **bad.changes)
    assert codes(result) == {"connection-id-reused", "address-not-validated"}
    finding = next(finding for finding in result.findings if finding.code == "address-not-validated")
    assert (finding.role, finding.section) == ("server", "RFC 9000 §9.3")


# 0-RTT without the early secret, which Go's TLS never logs


def strip_early_secrets(artifacts: Artifacts) -> None:
    for log in artifacts.key_logs:
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(line for line in lines if not line.startswith("CLIENT_EARLY_TRAFFIC_SECRET")))


EVERY = [(recording, case, {"file_sizes": sizes} if sizes else {}) for recording, case, sizes in GOOD_ONES]
EVERY += [(good.path, good.case, dict(good.changes)) for good in GOOD]


@pytest.mark.parametrize(
    ("recording", "case", "changes"), EVERY, ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_good_verdict_needs_the_early_secret(
    catalog: Catalog, recorded: Recorded, recording: str, case: str, changes: dict[str, Any]
) -> None:
    artifacts = recorded(recording)
    strip_early_secrets(artifacts)
    result = judge(catalog, artifacts, case, **changes)
    assert (result.outcome, result.findings) == (Outcome.SUCCEEDED, ())


def test_early_data_that_nobody_can_read_is_no_verdict(catalog: Catalog, recorded: Recorded) -> None:
    """The server answered no request that was only in 0-RTT: the requests were sent again."""

    def again(tables: Tables) -> None:
        last = tables["packets"][-1]["connection"]
        packet = next(
            packet
            for packet in tables["packets"]
            if packet["type"] == "1rtt" and packet["sender"] == CLIENT and packet["connection"] == last
        )
        time_ns = tables["datagrams"][packet["datagram"]]["time_ns"]
        row = dict.fromkeys(TABLES["stream_frames"].names) | {
            "packet": packet["packet"], "frame": 90, "stream_id": 0, "offset": 0, "length": 5, "fin": True,
            "time_ns": time_ns, "connection": last, "sender": CLIENT, "packet_number": packet["packet_number"],
        }  # fmt: skip
        tables["stream_frames"].append(row)

    artifacts = recorded("quic-go_quinn/zerortt")
    strip_early_secrets(artifacts)
    result = judge(catalog, craft(catalog, artifacts, "zerortt", again), "zerortt", 1024, 1024)
    assert (result.outcome, codes(result)) == (Outcome.ERROR, {"early-data-unread"})
    assert "CLIENT_EARLY_TRAFFIC_SECRET" in result.findings[0].expected


@pytest.mark.parametrize(
    ("name", "code"), [("no-early-data", "not-early"), ("refuses-early-data", "early-data-refused")]
)
def test_a_fault_is_found_without_the_early_secret(catalog: Catalog, recorded: Recorded, name: str, code: str) -> None:
    artifacts = recorded(f"bad/{name}")
    strip_early_secrets(artifacts)
    result = judge(catalog, artifacts, "zerortt", *(32,) * 4)
    assert (result.outcome, codes(result)) == (Outcome.FAILED, {code})


@pytest.mark.parametrize(
    ("recording", "case", "sizes", "ours", "public"),
    [
        ("quinn_quinn/handshake", "handshake", (), Outcome.SUCCEEDED, ""),
        ("bad/always-retries", "handshake", (), Outcome.FAILED, "a Retry packet"),
        ("bad/closes-with-error", "handshake", (), Outcome.SUCCEEDED, ""),
        ("bad/many-streams", "multiplexing", (32,) * 20, Outcome.UNSUPPORTED, "the server's first stream limit"),
        ("bad/no-retry-token", "retry", (1024,), Outcome.FAILED, "no Initial packet with the token"),
        (
            "bad/forgets-tickets",
            "resumption",
            (1024, 1024),
            Outcome.FAILED,
            "only the first handshake may have a Certificate",
        ),
        ("bad/no-early-data", "zerortt", (32,) * 4, Outcome.FAILED, "no 0-RTT packet"),
        ("bad/no-ce-counts", "ecn", (61440,), Outcome.FAILED, ""),
        ("bad/no-upgrade-client", "v2", (1024,), Outcome.FAILED, "no change from version 1"),
        ("bad/corrupt-file", "handshake", (), Outcome.FAILED, "the files in /downloads"),
        # Probes of the path's MTU, in 1-RTT packets, count as data there.
        ("quic-go_quinn/zerortt", "zerortt", (1024, 1024), Outcome.SUCCEEDED, "6564 B of the client in 1-RTT packets"),
    ],
)
def test_what_the_public_runner_would_have_said(
    catalog: Catalog, recorded: Recorded, recording: str, case: str, sizes: tuple[int, ...], ours: Outcome, public: str
) -> None:
    result = judge(catalog, recorded(recording), case, *sizes)
    assert result.outcome is ours
    assert result.public is not None
    assert result.public.outcome is (Outcome.FAILED if public else Outcome.SUCCEEDED)
    assert result.public.why.startswith(public)
