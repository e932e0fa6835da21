"""The hostile peer against aioquic in memory: flights arrive as they were meant, and verdicts follow from packets."""

import asyncio
import importlib
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pylsqpack
import pytest
from aioquic._crypto import CryptoError
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.h3.connection import H3Connection, MessageError
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicConnectionError, QuicConnectionState
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.events import ConnectionTerminated, QuicEvent
from aioquic.quic.packet import QuicHeader, QuicVersionInformation
from rich.console import Console

from runner.check.flight_verdicts import (
    ERROR,
    FAILED,
    INAPPLICABLE,
    NOTE,
    PASSED,
    UNSUPPORTED,
    FlightResult,
    Sample,
    judge_flights,
    read_log,
    read_usage,
)
from runner.check.meeting import _WATCH, PEER, Batch, Meeting, batches, exit_code, folder_of, markdown
from runner.decode.tables import decode_capture
from runner.errors import UsageError
from runner.model.rules import BY_ID
from runner.model.run import Job
from runner.model.stack import Role
from runner.store.runs import stored_result
from runner.tests.hostile import in_memory
from runner.tests.hostile.in_memory import FLIGHTS, ROWS, Polite, meet, one

# What aioquic 1.7.2 does right: each kind of flight, in both roles.
_RIGHT = """parameter-ack-delay-exponent-21 parameter-retry-source-wrong finished-wrong stream-in-initial no-frame
path-challenge-in-handshake new-connection-ids-too-many connection-ids-all-retired close-in-1rtt
fixed-bit-0-in-1rtt small-initial key-update-twice junk-long retry-twice negotiation-late stateless-reset-forged
key-update h3-settings-missing h3-pseudo-twice h3-uppercase-name qpack-static-index key-update-forged key-share-zero
h3-setting-datagram-2 version-information-version-zero grease-quic-bit-with-value stream-too-many-in-early-data"""
# Where it breaks a MUST: read in its source by hand.
WRONG = {"new-token-empty": Role.CLIENT, "h3-goaway-higher": Role.SERVER, "qpack-encoder-closed": Role.SERVER} | {
    "new-connection-id-beside-empty": Role.CLIENT,
    "h3-scheme-missing": Role.SERVER,
}


def _cases() -> list[tuple[str, Role]]:
    return [(name, role) for name in _RIGHT.split() for role in FLIGHTS[name].roles]


@pytest.mark.parametrize(("name", "role"), _cases())
def test_a_right_answer_passes(tmp_path: Path, name: str, role: Role) -> None:
    result = one(meet(name, role, tmp_path))
    assert (result.verdict, result.why) == (PASSED, ""), result
    assert result.sent


@pytest.mark.parametrize(("name", "role"), WRONG.items())
def test_an_accepted_violation_fails(tmp_path: Path, name: str, role: Role) -> None:
    result = one(meet(name, role, tmp_path))
    assert result.verdict == FAILED and result.accepted, result


class Careless(QuicConnection):
    """Goes on after a frame that it can't read."""

    def _payload_received(self, *args: Any, **others: Any) -> tuple[bool, bool]:
        try:
            return super()._payload_received(*args, **others)
        except QuicConnectionError:
            return True, True


class _Talkative(QuicConnection):
    """Closes every connection with a code that fits no rule of the transport."""

    def close(self, error_code: int = 0, *args: Any, **others: Any) -> None:
        super().close(error_code and 0x10, *args, **others)


def test_the_same_flight_fails_an_endpoint_that_goes_on(tmp_path: Path) -> None:
    result = one(meet("unknown-frame", Role.SERVER, tmp_path, connection=Careless))
    assert result.verdict == FAILED and result.accepted, result


def test_the_close_of_a_server_that_is_stopped_is_no_answer(tmp_path: Path) -> None:
    class Waiting(Careless):
        """Answers no request, so that the connection is open when it is stopped."""

        def send_stream_data(self, *_: Any, **__: Any) -> None:
            pass

    result = one(meet("unknown-frame", Role.SERVER, tmp_path, connection=Waiting, stopped=True))
    assert (result.verdict, result.code) == (FAILED, ""), result


def test_another_code_is_a_note(tmp_path: Path) -> None:
    result = one(meet("unknown-frame", Role.SERVER, tmp_path, connection=_Talkative))
    assert (result.verdict, result.code) == (NOTE, "NO_VIABLE_PATH")


class _Stopping(QuicConnection):
    """Answers an error with STOP_SENDING, and closes nothing."""

    def close(self, error_code: int = 0, *args: Any, **others: Any) -> None:
        if error_code:
            self._streams[0].receiver.is_finished = False
            self.stop_stream(0, error_code)
        else:
            super().close(error_code, *args, **others)


def test_a_client_that_refuses_the_response_alone_has_noticed_the_violation(tmp_path: Path) -> None:
    result = one(meet("qpack-static-index", Role.CLIENT, tmp_path, connection=_Stopping))
    assert (result.verdict, result.seen) == (NOTE, "stream error QPACK_DECOMPRESSION_FAILED"), result


def test_a_client_that_refuses_the_response_with_another_code_gets_a_note(tmp_path: Path) -> None:
    class Cancelling(_Stopping):
        def close(self, error_code: int = 0, *args: Any, **others: Any) -> None:
            super().close(0x10C if error_code == 0x10E else error_code, *args, **others)

    result = one(meet("h3-status-missing", Role.CLIENT, tmp_path, connection=Cancelling))
    assert (result.verdict, result.seen) == (NOTE, "stream error H3_REQUEST_CANCELLED"), result


class _Deaf(QuicConnection):
    """Goes on after CONNECTION_CLOSE."""

    def _handle_connection_close_frame(self, _: Any, __: int, buf: Any) -> None:
        buf.pull_bytes(buf.capacity - buf.tell())


@pytest.mark.parametrize("name", ["close-in-handshake", "close-in-1rtt"])
@pytest.mark.parametrize("role", list(Role))
def test_an_endpoint_that_goes_on_after_a_close_fails(tmp_path: Path, name: str, role: Role) -> None:
    assert one(meet(name, role, tmp_path)).verdict == PASSED
    assert one(meet(name, role, tmp_path, connection=_Deaf)).verdict == FAILED


class _Lowering(QuicConnection):
    """Takes every MAX_DATA, also a lower one."""

    def _handle_max_data_frame(self, _: Any, __: int, buf: Any) -> None:
        self._remote_max_data = buf.pull_uint_var()


def test_a_client_that_takes_a_lower_limit_fails(tmp_path: Path) -> None:
    assert one(meet("max-data-lower-while-blocked", Role.CLIENT, tmp_path)).verdict == PASSED
    result = one(meet("max-data-lower-while-blocked", Role.CLIENT, tmp_path, connection=_Lowering))
    assert result.verdict == FAILED, result


class _Ending(Meeting):
    """Meets a server that ends when it gets the flights `deadly` at the same time."""

    deadly = frozenset({"no-frame"})

    def __init__(self) -> None:
        self.stack, self.together, self._out = PEER, [], Console(quiet=True)
        self.jobs: list[tuple[list[str], list[str]]] = []

    def _run_flights(self, _: Any, batch: Batch) -> tuple[list[FlightResult], set[str]]:
        alone, beside = ([each.name for each in part] for part in (batch.alone, batch.flights))
        self.jobs.append((alone, beside))
        results = []
        for name in alone:
            ends = self.deadly == {name}
            verdict = FAILED if ends else PASSED
            results.append(FlightResult(flight=name, role="server", verdict=verdict, seen="", crashed=ends))
            if ends:
                return results, set()
        if self.deadly.issubset(beside):
            return results, set(beside[:3])
        return [
            *results,
            *(FlightResult(flight=each, role="server", verdict=PASSED, seen="") for each in beside),
        ], set()


def _ends(meeting: _Ending) -> list[tuple[str, bool]]:
    flights = tuple(FLIGHTS[name] for name in ("unknown-frame", "no-frame", "key-update", "new-token-empty"))
    job: Any = Job(server="tested", client="hostile", case="hostile-handshake", iteration=1)
    batch = Batch(Role.SERVER, "handshake", flights)
    return [(result.flight, result.crashed) for result in meeting._batch(job, batch)]


def test_of_several_flights_the_one_that_ends_a_server_is_found() -> None:
    meeting = _Ending()
    names = ["unknown-frame", "no-frame", "key-update", "new-token-empty"]
    assert _ends(meeting) == [(name, name == "no-frame") for name in names]
    assert meeting.jobs == [([], names), (names[:3], names[3:]), ([], names[2:])]
    assert not meeting.together


def test_a_server_that_only_several_flights_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = _Ending()
    monkeypatch.setattr(meeting, "deadly", frozenset({"no-frame", "key-update"}))
    assert not any(crashed for _, crashed in _ends(meeting))
    assert meeting.together == [("key-update", "no-frame", "unknown-frame")]


@pytest.mark.parametrize("name", ["qpack-dynamic-index", "qpack-section-cut-off", "qpack-huffman-padding"])
def test_a_section_that_cannot_be_decoded_may_end_the_stream_alone(tmp_path: Path, name: str) -> None:
    result = one(meet(name, Role.CLIENT, tmp_path, connection=_Stopping))
    assert result.verdict == PASSED, result


@pytest.mark.parametrize("name", ["h3-push-not-allowed", "h3-push-promise-not-allowed"])
def test_a_client_that_allows_some_pushes_has_no_leave_for_all(tmp_path: Path, name: str) -> None:
    assert one(meet(name, Role.CLIENT, tmp_path)).verdict == PASSED


class _Unread(QuicConnection):
    """Drops data of a stream that was reset before the application read them, 50 ms later (RFC 9000 §3.2)."""

    _arrived: float | None = None

    def _handle_stream_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        self._arrived = context.time if self._arrived is None else self._arrived
        super()._handle_stream_frame(context, frame_type, buf)

    def _handle_reset_stream_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        super()._handle_reset_stream_frame(context, frame_type, buf)
        if self._arrived is not None and context.time < self._arrived + 0.05:
            self._events.clear()


def test_a_control_stream_is_reset_after_it_was_read(tmp_path: Path) -> None:
    result = one(meet("h3-control-reset", Role.CLIENT, tmp_path, connection=_Unread))
    assert result.verdict == PASSED, result


class _Impatient(QuicConnection):
    """Closes with AEAD_LIMIT_REACHED after 500 datagrams."""

    _count = 0

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        super().receive_datagram(data, addr, now)
        self._count += 1
        if self._count == 500:
            self.close(0x0F, 0)


@pytest.mark.parametrize("role", Role)
def test_forged_packets_close_no_connection(tmp_path: Path, role: Role) -> None:
    assert one(meet("flood-forged", role, tmp_path)).verdict == PASSED
    wrong = one(meet("flood-forged", role, tmp_path, connection=_Impatient))
    assert (wrong.verdict, wrong.code) == (FAILED, "AEAD_LIMIT_REACHED"), wrong


def test_a_request_without_scheme_is_malformed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def validate(headers: Any, _: Any) -> None:
        if b":scheme" not in dict(headers):
            raise MessageError("no scheme")

    monkeypatch.setattr("aioquic.h3.connection.validate_request_headers", validate)
    assert one(meet("h3-scheme-missing", Role.SERVER, tmp_path)).verdict == PASSED


_RECORDINGS = Path(__file__).parent / "recordings"
_MIB = 1 << 20
_HONEST = [(-2.0, 20 * _MIB, 0.0), (-1.0, 30 * _MIB, 0.5)]


@pytest.mark.parametrize("role", Role)
def test_a_flood_is_measured(tmp_path: Path, role: Role) -> None:
    samples = [*_HONEST, (0.0, 25 * _MIB, 0.5), (0.1, 40 * _MIB, 1.5), (1.3, 40 * _MIB, 2.5), (99.0, 32 * _MIB, 9.0)]
    result = one(meet("flood-pings", role, tmp_path, usage=samples))
    assert result.verdict == PASSED and result.usage is not None, result
    before, after = (30, ()) if role is Role.CLIENT else (25, (40 * _MIB, 40 * _MIB))
    assert (result.usage.before, result.usage.most, result.usage.after) == (before * _MIB, 40 * _MIB, after)
    assert result.usage.cpu_s == (0.5 if role is Role.CLIENT else 1.0) and result.usage.datagrams >= 100
    assert 30_000 < result.usage.sent < 60_000
    assert "CPU" in markdown(PEER, tmp_path, [result], FLIGHTS)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([(0.0, 0, 0.0), (0.1, 100 * _MIB, 0.0)], "grew by 100 MiB"),
        ([(0.0, 0, 0.0), (0.1, 0, 4.0), (1.2, 0, 7.0)], "3.0 CPU seconds"),
        ([(0.0, 0, 0.0), (0.1, 8 * _MIB, 0.0), (1.1, 50 * _MIB, 0.0)], "42 MiB more than the first"),
    ],
)
def test_unusual_cost_of_a_flood_is_a_note(tmp_path: Path, samples: list[Sample], why: str) -> None:
    result = one(meet("flood-pings", Role.SERVER, tmp_path, usage=samples))
    assert result.verdict == NOTE and why in result.why, result


def test_a_flood_of_which_a_part_is_lost_has_no_verdict(tmp_path: Path) -> None:
    sizes: list[int] = []

    def lose(data: bytes) -> bool:
        sizes.append(len(data))
        return len(sizes) == 50

    result = one(meet("flood-pings", Role.SERVER, tmp_path, lose=lose))
    assert result.verdict == ERROR and "of the flight's" in result.why, result


def test_floods_come_first_and_alone() -> None:
    chosen = [FLIGHTS[name] for name in ("unknown-frame", "flood-pings", "no-frame", "flood-resets")]
    (batch,) = batches(chosen, [Role.SERVER])
    assert [flight.name for flight in batch.flights] == ["flood-pings", "flood-resets", "unknown-frame", "no-frame"]
    meeting = _Ending()
    job: Any = Job(server="tested", client="hostile", case="hostile-handshake", iteration=1)
    meeting.deadly = frozenset({"flood-pings"})
    verdicts = {each.flight: each.verdict for each in meeting._batch(job, batch)}
    assert [alone for alone, _ in meeting.jobs] == [["flood-pings", "flood-resets"], ["flood-resets"]]
    assert verdicts == dict.fromkeys(("flood-resets", "unknown-frame", "no-frame"), PASSED) | {"flood-pings": FAILED}


def test_samples_of_an_endpoint_are_read(tmp_path: Path) -> None:
    """Of its processes, by the shell's own means; lines that another program wrote are left out."""
    path = tmp_path / "usage"
    until = f"until read < {path}; do sleep 0.1; done; kill $!; echo 1 2 x >> {path}"
    script = f"{_WATCH.replace('/logs/usage', str(path))}touch {path}; watch & {until}"
    subprocess.run(["/bin/bash", "-c", script], check=True)
    samples = read_usage(path)
    assert samples and samples[-1][1] > _MIB and abs(samples[0][0] - time.time()) < 60


def test_more_blocked_streams_than_allowed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one(meet("qpack-too-many-blocked", Role.SERVER, tmp_path)).verdict == PASSED
    init = H3Connection._init_connection

    def generous(self: H3Connection) -> None:
        self._decoder = pylsqpack.Decoder(self._max_table_capacity, 1000)
        init(self)

    monkeypatch.setattr(H3Connection, "_init_connection", generous)
    assert one(meet("qpack-too-many-blocked", Role.SERVER, tmp_path)).verdict == FAILED


class _Trailing(QuicConnection):
    """Goes on sending after CONNECTION_CLOSE."""

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        if self._close_event is not None and not self._close_pending:
            self._close_event, self._state = None, QuicConnectionState.CONNECTED
            self._close_at = None
        return super().datagrams_to_send(now)


def test_only_closes_follow_a_close(tmp_path: Path) -> None:
    assert one(meet("close-is-last", Role.SERVER, tmp_path)).verdict == PASSED
    result = one(meet("close-is-last", Role.SERVER, tmp_path, connection=_Trailing))
    assert result.verdict == NOTE and "other packet" in result.seen, result


class _Sleepless(QuicConnection):
    """Knows no idle timeout."""

    def _idle_timeout(self) -> float:
        return 60.0


class _Orderly(QuicConnection):
    """Closes when CRYPTO data arrives out of order."""

    def _handle_crypto_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        at = buf.tell()
        if buf.pull_uint_var() > self._crypto_streams[context.epoch].receiver.starting_offset():
            raise QuicConnectionError(error_code=0x0D, frame_type=frame_type, reason_phrase="")
        buf.seek(at)
        super()._handle_crypto_frame(context, frame_type, buf)


class _Constant(QuicConnection):
    """Accepts only its first connection ID, and grants no more streams."""

    def receive_datagram(self, data: bytes, *args: Any) -> None:
        if data[0] & 0x80 or data[1:9] == self._host_cids[0].cid:
            super().receive_datagram(data, *args)

    def _write_connection_limits(self, *_: Any, **__: Any) -> None:
        pass


class _Stubborn(QuicConnection):
    """Ignores STOP_SENDING, and reads only the first part of a stream."""

    def _handle_stop_sending_frame(self, _: Any, __: int, buf: Any) -> None:
        buf.pull_uint_var(), buf.pull_uint_var()

    def _handle_stream_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        at = buf.tell()
        if buf.pull_uint_var() == 0 and buf.pull_uint_var() > 0:
            buf.pull_bytes(buf.pull_uint_var())
        else:
            buf.seek(at)
            super()._handle_stream_frame(context, frame_type, buf)


class _Hopeless(QuicConnection):
    """Sends no probes."""

    def get_timer(self) -> float | None:
        return 8.0


@pytest.mark.parametrize(
    ("name", "role", "wrong"),
    [
        ("idle-timeout", Role.SERVER, _Sleepless),
        ("crypto-out-of-order", Role.SERVER, _Orderly),
        ("any-active-id", Role.SERVER, _Constant),
        ("streams-without-blocked", Role.SERVER, _Constant),
        ("stop-sending-unanswered", Role.SERVER, _Stubborn),
        ("request-out-of-order", Role.SERVER, _Stubborn),
        ("client-without-keys", Role.CLIENT, _Hopeless),
    ],
)
def test_a_rule_that_only_a_peer_makes_visible(
    tmp_path: Path, name: str, role: Role, wrong: type[QuicConnection]
) -> None:
    assert one(meet(name, role, tmp_path)).verdict == PASSED
    result = one(meet(name, role, tmp_path, connection=wrong))
    assert result.verdict == (FAILED if FLIGHTS[name].level == "MUST" else NOTE), result
    assert FLIGHTS[name].rule and not BY_ID[FLIGHTS[name].rule].checked


def test_a_client_that_sends_probes_may_close_after_them(tmp_path: Path) -> None:
    result = one(meet("client-without-keys", Role.CLIENT, tmp_path, connection=Polite))
    assert result.verdict == PASSED, result


def test_a_flight_without_a_rule_of_its_own_is_about_error_codes() -> None:
    rules = {"unknown-message": "rfc9001-4.8-alert-level", "h3-host-differs": "rfc9114-8-wrong-error-code"}
    assert {name: FLIGHTS[name].rule for name in rules} == rules


def test_a_server_may_leave_the_rest_of_a_request_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(H3Connection, "_check_content_length", lambda *_: None)
    result = one(meet("h3-content-length-too-large", Role.SERVER, tmp_path))
    assert (result.verdict, result.seen) == (NOTE, "status 200"), result
    assert one(meet("h3-content-length-too-large", Role.CLIENT, tmp_path)).verdict == FAILED


class _AnyProtocol(QuicConnection):
    """Needs no ALPN."""

    def _initialize(self, *args: Any) -> None:
        super()._initialize(*args)
        self.tls._alpn_protocols = None


def test_a_server_that_negotiates_no_protocol_gets_the_whole_handshake(tmp_path: Path) -> None:
    assert one(meet("alpn-missing", Role.SERVER, tmp_path)).verdict == PASSED
    result = one(meet("alpn-missing", Role.SERVER, tmp_path, connection=_AnyProtocol))
    assert result.verdict == FAILED and result.accepted, result


class _Leaving(QuicConnection):
    """Ends soon after an error, without a word."""

    _heard = 0.0
    left: float | None = None

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        self._heard = now
        super().receive_datagram(data, addr, now)

    def close(self, *args: Any, **others: Any) -> None:
        self.left = self._heard + 0.1
        super().close(*args, **others)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        datagrams = super().datagrams_to_send(now)
        return datagrams if self.left is None else []


def test_a_client_that_ends_at_once_has_noticed_the_violation(tmp_path: Path) -> None:
    result = one(meet("unknown-frame", Role.CLIENT, tmp_path, connection=_Leaving))
    assert (result.verdict, result.seen) == (NOTE, "the client ended with exit code 1"), result


class _Panicking(in_memory.Tested):
    """A Rust program that panics over a peer's packet."""

    exit_code = property(lambda _: 101, lambda *_: None)


def test_a_client_that_panics_has_crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory, "Tested", _Panicking)
    result = one(meet("close-with-unknown-code", Role.CLIENT, tmp_path))
    assert (result.verdict, result.seen) == (FAILED, "the client ended with exit code 101"), result
    assert result.crashed


def test_a_close_that_the_client_has_no_keys_for_is_a_note() -> None:
    """A recording of tquic's server, whose key log opens the packet."""
    folder = _RECORDINGS / "close-unread"
    flights, log = [FLIGHTS["parameter-original-destination-from-client"]], read_log(folder / "flights.jsonl")
    capture, own = folder / "server.pcap", [folder / "keys.log"]
    result = one(judge_flights(flights, Role.SERVER, log=log, capture=capture, key_logs=[], own_key_logs=own))
    assert (result.verdict, result.code) == (NOTE, "TRANSPORT_PARAMETER_ERROR"), result
    result = one(judge_flights(flights, Role.SERVER, log=log, capture=capture, key_logs=[]))
    assert (result.verdict, result.seen) == (NOTE, "Handshake packets that the client can't read"), result
    other = [replace(flights[0], then=("silent",))]
    result = one(judge_flights(other, Role.SERVER, log=log, capture=capture, key_logs=[], own_key_logs=own))
    assert result.verdict == FAILED, result


def test_a_client_that_begins_again_after_a_flood_survives() -> None:
    """A recording of tquic's client, which asks for the file over new connections until our time-out."""
    folder = _RECORDINGS / "begins-again"
    flights, log = [FLIGHTS["flood-stream-gaps"]], read_log(folder / "flights.jsonl")
    others: dict[str, Any] = {"capture": folder / "client.pcap", "key_logs": [folder / "keys.log"]}
    result = one(judge_flights(flights, Role.CLIENT, log=log, **others))
    assert (result.verdict, result.seen) == (PASSED, "it began another connection"), result
    soon = [log[0], {**log[1], "ended": log[0]["fired"] + 0.3}]
    assert one(judge_flights(flights, Role.CLIENT, log=soon, **others)).verdict == FAILED


@pytest.mark.parametrize("role", Role)
def test_the_peer_leaves_the_keys_of_the_handshake_when_it_is_confirmed(tmp_path: Path, role: Role) -> None:
    meet("path-challenge-flood", role, tmp_path)
    trace = decode_capture(tmp_path / "end.pcap", [tmp_path / "keys.log"])
    done = next(row for row in trace.frames.to_pylist() if row["name"] == "handshake_done")
    sender = 1 if role is Role.CLIENT else 0
    late = [row["type"] for row in trace.packets.to_pylist()[done["packet"] + 1 :] if row["sender"] == sender]
    assert late and set(late) == {"1rtt"}


def test_the_honest_response_follows_frames_that_leave_its_stream_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(H3Connection, "_check_push_id", lambda *_: None)
    result = one(meet("h3-push-promise-not-allowed", Role.CLIENT, tmp_path))
    assert (result.verdict, result.accepted) == (FAILED, True), result


def test_a_server_that_answers_a_small_initial_at_once_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioquic.quic.connection.SMALLEST_MAX_DATAGRAM_SIZE", 100)
    assert one(meet("small-initial", Role.SERVER, tmp_path)).verdict == FAILED


@pytest.mark.parametrize("name", ["unknown-frame", "no-frame", "parameter-ack-delay-exponent-21"])
def test_a_flight_that_did_not_arrive_is_an_error(tmp_path: Path, name: str) -> None:
    seen: list[bytes] = []

    def lose(data: bytes) -> bool:
        seen.append(data)
        return data[0] < 0x80 if "frame" in name else len(seen) == 1

    assert one(meet(name, Role.SERVER, tmp_path, lose=lose)).verdict == ERROR


@pytest.mark.slow
def test_every_flight_can_be_sent(tmp_path: Path) -> None:
    """Each expression of the list has a value, in the state in which it is used."""
    for name in ROWS:
        for role in FLIGHTS[name].roles:
            result = one(meet(name, role, tmp_path))
            assert result.verdict != ERROR, (name, role, result)


def test_the_peer_closes_a_connection_before_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a server that serves one connection after another goes on: after a flight that nothing honest follows,
    and when the time is over."""
    assert one(meet("rebinding-amplification", Role.SERVER, tmp_path)).verdict == PASSED
    trace = decode_capture(tmp_path / "end.pcap", [tmp_path / "keys.log"])
    assert "application_close" in trace.frames["name"].to_pylist()

    endpoint = importlib.import_module("endpoint")
    monkeypatch.setattr(endpoint, "LOG", tmp_path / "flights.jsonl")
    monkeypatch.setattr(endpoint, "_FIRST_LONGEST", 0.5)
    monkeypatch.setenv("TESTCASE", "handshake")

    async def meet_idle_server() -> None:
        ended = asyncio.Event()

        class Idle(QuicConnectionProtocol):
            """Answers no request."""

            def quic_event_received(self, event: QuicEvent) -> None:
                if isinstance(event, ConnectionTerminated):
                    ended.set()

        configuration = QuicConfiguration(is_client=False, alpn_protocols=["hq-interop"])
        configuration.load_cert_chain(tmp_path / "cert.pem", tmp_path / "priv.key")
        server = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=Idle)
        assert server._transport is not None
        port = server._transport.get_extra_info("sockname")[1]
        monkeypatch.setenv("REQUESTS", f"https://127.0.0.1:{port}/file")
        peer = await asyncio.to_thread(endpoint.Client().connect, {})
        assert peer.confirmed and not peer.answered
        await asyncio.wait_for(ended.wait(), 2)
        server.close()

    asyncio.run(meet_idle_server())


def test_the_report_can_be_pasted(tmp_path: Path) -> None:
    results = meet("new-token-empty", Role.CLIENT, tmp_path)
    text = markdown(PEER, tmp_path, results, FLIGHTS)
    for part in (
        "tested: hostile flights as client, image bentpipe/hostile",
        "check bentpipe/hostile --hostile --case new-token-empty",
        "RFC 9000 §19.7",
        "new_token(b'')",
        "FRAME_ENCODING_ERROR",
        "the connection continued",
        "frame.number in {",
    ):
        assert part in text
    assert exit_code(results) == 1


def test_a_server_that_takes_a_client_hello_twice_fails(tmp_path: Path) -> None:
    """aioquic leaves it to its application how often it takes a ticket."""
    once = one(meet("early-data-replayed", Role.SERVER, tmp_path, take=lambda tickets, label: tickets.pop(label, None)))
    assert (once.verdict, once.seen) == (PASSED, "the packet was dropped, and the connection continued"), once
    twice = one(meet("early-data-replayed", Role.SERVER, tmp_path))
    assert twice.verdict == FAILED and twice.accepted, twice


class _Wary(QuicConnection):
    """Compares the available versions of the server with the Version Negotiation packet that it followed."""

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket)
        information = self._remote_version_information
        if self._version_negotiated_incompatible and information and not information.available_versions:
            raise QuicConnectionError(error_code=0x11, frame_type=6, reason_phrase="no available version")


def test_a_client_that_follows_a_forged_version_negotiation_fails(tmp_path: Path) -> None:
    """aioquic 1.7.2 parses the available versions, and compares them with nothing."""
    name = "version-information-empty-after-negotiation"
    result = one(meet(name, Role.CLIENT, tmp_path))
    assert result.verdict == FAILED and result.accepted, result
    right = one(meet(name, Role.CLIENT, tmp_path, connection=_Wary))
    assert (right.verdict, right.code) == (PASSED, "VERSION_NEGOTIATION_ERROR"), right


class _Anew(QuicConnection):
    """Begins again with another destination, as quic-go does."""

    def _receive_version_negotiation_packet(self, header: QuicHeader, now: float) -> None:
        if not self._version_negotiated_incompatible:
            self._peer_cid.cid = self._original_destination_connection_id = os.urandom(8)
        super()._receive_version_negotiation_packet(header, now)


class _Gullible(QuicConnection):
    """Follows each Version Negotiation packet."""

    def _receive_version_negotiation_packet(self, header: QuicHeader, now: float) -> None:
        self._version_negotiated_incompatible = False
        super()._receive_version_negotiation_packet(header, now)


def test_a_client_follows_one_version_negotiation(tmp_path: Path) -> None:
    name = "negotiation-after-negotiation"
    right = one(meet(name, Role.CLIENT, tmp_path, connection=_Anew))
    assert (right.verdict, right.seen) == (PASSED, "the connection continued"), right
    assert one(meet(name, Role.CLIENT, tmp_path, connection=_Gullible)).verdict == FAILED


class _Comparing(QuicConnection):
    """Compares max_datagram_frame_size with that of its ticket."""

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        stored = self._remote_max_datagram_frame_size
        super()._parse_transport_parameters(data, from_session_ticket)
        if stored and (self._remote_max_datagram_frame_size or 0) < stored:
            raise QuicConnectionError(error_code=0x0A, frame_type=6, reason_phrase="max_datagram_frame_size is lower")


def test_a_client_that_takes_a_lower_limit_with_early_data_fails(tmp_path: Path) -> None:
    """aioquic 1.7.2 remembers the limit, and compares it with nothing."""
    name = "datagram-size-reduced-with-early-data"
    result = one(meet(name, Role.CLIENT, tmp_path, max_datagram_frame_size=1200))
    assert result.verdict == FAILED and result.accepted, result
    assert one(meet(name, Role.CLIENT, tmp_path)).seen == "the connection continued"
    right = one(meet(name, Role.CLIENT, tmp_path, connection=_Comparing, max_datagram_frame_size=1200))
    assert (right.verdict, right.code) == (PASSED, "PROTOCOL_VIOLATION"), right
    trace = decode_capture(tmp_path / "end.pcap", [tmp_path / "keys.log"])
    assert [each["early_data_accepted"] for each in trace.connections.to_pylist()] == [False, True]


def test_an_endpoint_that_knows_an_extension_may_not_ignore_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lenient = QuicVersionInformation(chosen_version=1, available_versions=[1])
    monkeypatch.setattr(
        "aioquic.quic.packet.pull_quic_version_information", lambda buf, size: buf.pull_bytes(size) and lenient
    )
    for role in Role:
        result = one(meet("version-information-version-zero", role, tmp_path))
        assert result.verdict == FAILED and result.accepted, result


@pytest.mark.parametrize("role", Role)
def test_an_empty_datagram_is_acknowledged(tmp_path: Path, role: Role) -> None:
    result = one(meet("datagram-empty", role, tmp_path))
    assert (result.verdict, result.why) == (INAPPLICABLE, "not true for it: peer.max_datagram_frame_size"), result
    assert one(meet("datagram-empty", role, tmp_path, max_datagram_frame_size=1200)).verdict == PASSED


def test_an_empty_connection_id_is_not_retired(tmp_path: Path) -> None:
    right = one(meet("retire-empty-connection-id", Role.SERVER, tmp_path, connection_id_length=0))
    assert right.verdict == PASSED, right
    wrong = meet("retire-empty-connection-id", Role.SERVER, tmp_path, connection=_Constant, connection_id_length=0)
    assert one(wrong).verdict == FAILED, wrong


@pytest.mark.parametrize("role", Role)
def test_a_forged_key_update_changes_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role) -> None:
    meet("key-update-forged", role, tmp_path)
    packets = decode_capture(tmp_path / "end.pcap", [tmp_path / "keys.log"]).packets.to_pylist()
    assert {packet["key_phase"] for packet in packets if packet["type"] == "1rtt" and packet["decrypted"]} == {0}
    decrypt = CryptoPair.decrypt_packet

    def hasty(pair: CryptoPair, *args: Any) -> Any:
        try:
            return decrypt(pair, *args)
        except CryptoError:
            pair._update_key("remote_update")
            raise

    monkeypatch.setattr(CryptoPair, "decrypt_packet", hasty)
    result = one(meet("key-update-forged", role, tmp_path))
    assert result.verdict == FAILED, result


class _Retiring(QuicConnection):
    """Retires a connection ID whose number is below a Retire Prior To."""

    def _handle_new_connection_id_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        super()._handle_new_connection_id_frame(context, frame_type, buf)
        if self._peer_retire_prior_to == 2 and 1 not in self._retire_connection_ids:
            self._retire_connection_ids.append(1)


def test_a_late_connection_id_is_retired(tmp_path: Path) -> None:
    """aioquic 1.7.2 drops it without a word."""
    result = one(meet("new-connection-id-below-retired", Role.SERVER, tmp_path))
    assert (result.verdict, result.seen) == (FAILED, "the connection continued"), result
    right = one(meet("new-connection-id-below-retired", Role.SERVER, tmp_path, connection=_Retiring))
    assert (right.verdict, right.seen) == (PASSED, "a frame RETIRE_CONNECTION_ID 1"), right


@pytest.mark.parametrize(("code", "verdict"), [(127, UNSUPPORTED), (1, ERROR), (124, ERROR)])
def test_a_client_that_fails_with_an_honest_peer_meets_no_flight(tmp_path: Path, code: int, verdict: str) -> None:
    log = [{"flight": "", "exit": code}]
    results = judge_flights([FLIGHTS["no-frame"]], Role.CLIENT, log=log, capture=tmp_path, key_logs=[])
    assert one(results).verdict == verdict
    log = [{"flight": "", "exit": 0}, *log, {"flight": "no-frame", "exit": 3}]
    results = judge_flights([FLIGHTS["no-frame"]], Role.CLIENT, log=log, capture=tmp_path, key_logs=[])
    assert one(results).why == "the client made no connection"


def test_the_packets_of_a_flight_are_in_the_report(tmp_path: Path) -> None:
    job = tmp_path / "quinn_hostile" / "hostile-handshake" / "1"
    job.mkdir(parents=True)
    (job / "evidence.json").touch()
    with pytest.raises(UsageError, match=rf"hostile\.md in {tmp_path} has the command"):
        stored_result(job)


def test_one_stack_meets_the_peer_in_the_folder_that_run_names() -> None:
    assert folder_of("/tmp/report", "quinn", alone=True) == Path("/tmp/report")
    assert folder_of("night", "quinn", alone=True).parts[-3:] == ("logs", "checks", "night-quinn")
    assert folder_of("/tmp/report", "quinn", alone=False) == Path("/tmp/report-quinn")
