"""Verdicts on flights, from the packets at the end of the tested endpoint.

The peer's log says only which connection a flight was, which datagrams it was, and whether an honest connection
followed. What the endpoint did is read from its packets.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from runner.check.flights import ALERTS, APPLICATION, GENERIC, VOLUMES, HostileFlight, answer_text, code_name, is_frame
from runner.decode.capture import open_capture
from runner.decode.columns import NULL, Bools, Trace, integers, named, words
from runner.decode.http3 import DynamicTable, QpackError
from runner.decode.tables import decode_capture
from runner.model.rules import TRANSPORT
from runner.model.stack import Role
from runner.units import MIB, format_count

PASSED, FAILED, NOTE = "passed", "failed", "note"
ERROR, INAPPLICABLE, UNSUPPORTED = "error", "inapplicable", "unsupported"
"""The verdicts. inapplicable: `needs` of the flight is not true for this endpoint. unsupported: exit code 127."""
_ORDER = (FAILED, NOTE, ERROR, PASSED, INAPPLICABLE, UNSUPPORTED)
_PACKETS = {"initial": "an Initial packet", "handshake": "a Handshake packet", "1rtt": "a 1-RTT packet"}
_GRACE_NS = 100_000_000  # packets that were on the way when a flight arrived
_BATCH_NS = 10_000_000  # packets that were made before a close, and are sent with it
_VOLUME_NS = 1_500_000_000  # after a flight; what the endpoint sends in this time belongs to it
_SOON = 2.5  # seconds in which a client that noticed the violation has ended; idle connections end after 5
_PANIC = 101  # the exit code of a Rust program whose main thread panicked
_TIMED_OUT = 124  # exit code of `timeout`
UNSUPPORTED_CODE = 127
"""Exit code of an endpoint that does not support its test case."""
_HEADERS = 1  # type of the HTTP/3 frame
# Bytes of a page, clock ticks of a second (proc(5)); the tested endpoint runs on this host.
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
_MOST_SAMPLES = 100_000
# No RFC names a limit of memory or CPU time, so more than this is a note, never a failure.
_GROWTH, _GROWTH_PER_BYTE = 64 * MIB, 64
_KEPT = 32 * MIB  # that the second flood adds to what the first one left
_MOST_CPU = 1.0  # seconds


Sample = tuple[float, int, float]  # Unix time in seconds, bytes of memory, CPU seconds


@dataclass(frozen=True, kw_only=True)
class FloodCost:
    """Memory in bytes and CPU seconds of all processes of the tested endpoint during a flood. A client is a process of
    its own: its memory before is the most that it needs with an honest peer, and its CPU time is what it used more."""

    before: int
    most: int
    after: tuple[int, ...]  # after each of two meetings; nothing for a client, which ends
    cpu_s: float | None  # of the cheaper meeting; None in virtual time, where CPU work takes no time
    datagrams: int  # that came from the port of the flood, from its first one to its last one
    sent: int  # their bytes

    @property
    def text(self) -> str:
        memory = " → ".join(f"{each / MIB:.0f}" for each in (self.before, *self.after))
        cpu = "" if self.cpu_s is None else f"; CPU {self.cpu_s:.2f} s"
        flood = f"{format_count(self.datagrams, 'datagram')}, {self.sent / 1000:.0f} kB"
        return f"memory {memory} MiB, at most {self.most / MIB:.0f} MiB{cpu}; {flood}"

    @property
    def excess(self) -> str:
        """What is unusual; nothing when nothing is."""
        growth = self.most - self.before
        if growth > max(_GROWTH, _GROWTH_PER_BYTE * self.sent):
            return f"its memory grew by {growth / MIB:.0f} MiB for {self.sent / 1000:.0f} kB"
        if len(self.after) > 1 and self.after[1] - self.after[0] > _KEPT:
            return f"the second flood left {(self.after[1] - self.after[0]) / MIB:.0f} MiB more than the first"
        if self.cpu_s is not None and self.cpu_s > _MOST_CPU:
            return f"it used {self.cpu_s:.1f} CPU seconds for {self.sent / 1000:.0f} kB"
        return ""


@dataclass(frozen=True, kw_only=True)
class FlightResult:
    """The verdict on one flight. `sent` and `answers`: packets by their numbers in the capture of the tested end."""

    flight: str
    role: str  # the role under test
    verdict: str
    seen: str  # what the endpoint did
    why: str = ""  # why this is wrong, or why there is no verdict
    sent: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()
    crashed: bool = False
    accepted: bool = False  # the endpoint went on although it had to close
    code: str = ""  # the error code with which it closed
    job: str = ""  # folder of the job in the run
    usage: FloodCost | None = None  # of floods


def read_log(path: Path) -> list[dict[str, Any]]:
    """The peer's log. A line that was cut off when the peer was killed is left out."""
    lines = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def read_usage(path: Path) -> list[Sample]:
    """The samples that the endpoint's container wrote. Lines that are no sample are left out."""
    samples = []
    for line in path.read_text(errors="replace").splitlines()[:_MOST_SAMPLES] if path.is_file() else ():
        with suppress(ValueError, OverflowError):
            time_s, pages, ticks = line.split()
            samples.append((float(time_s), int(pages) * _PAGE, int(ticks) / _TICKS))
    return samples


def _spent(samples: Sequence[Sample], times: Sequence[float]) -> tuple[int, list[int], float] | None:
    """The most memory between the first and the last of `times`, the memory at each of them, the least CPU time between
    two of them: a JVM compiles in the first meeting. None without samples."""
    within = [memory for at, memory, _ in samples if times[0] <= at <= times[-1]]
    if not within:
        return None
    last = [max((each for each in samples if each[0] <= at), default=samples[0]) for at in times]
    return max(within), [memory for _, memory, _ in last], min(b[2] - a[2] for a, b in pairwise(last))


def judge_flights(
    flights: Iterable[HostileFlight],
    role: Role,
    *,
    log: Sequence[Mapping[str, Any]],
    capture: Path,
    key_logs: Sequence[Path],
    own_key_logs: Sequence[Path] = (),
    usage: Sequence[Sample] = (),
) -> list[FlightResult]:
    """Judge flights against an endpoint in `role`. `log`: the lines of the peer's log. `capture`: at the end of the
    tested endpoint. `key_logs`: secrets of the peer. `own_key_logs`: those of the tested endpoint, for what the peer
    can't read. `usage`: memory and CPU time of the endpoint. Flights that are not in the log are left out."""
    sent = [line for line in log if line.get("odcid")]
    ends = {line["flight"]: line for line in log if "exit" in line}
    succeeded = [line for line in log if "exit" in line and not line["flight"] and not line["exit"]]
    ends |= {"": succeeded[-1]} if succeeded else {}  # the second honest client may fail
    if code := ends.get("", {}).get("exit"):
        return [_not_met(flight, role, code) for flight in flights]
    packets = _Packets(capture, key_logs, own_key_logs) if sent else None
    results = []
    for flight in flights:
        lines = [line for line in sent if line["flight"] == flight.name]
        end = ends.get(flight.name, {})
        exit_code = end.get("exit")
        if exit_code == UNSUPPORTED_CODE:
            result = unsupported(flight, role)
        elif lines and packets is not None:
            # A client may try again after a failed connection: the flight is the first that fired. As a client, the
            # peer logs a flight again when an honest connection has followed.
            # A server meets a flood twice; the last meeting counts.
            met = lines[::-1] if flight.times and role is Role.SERVER else lines
            first = next((line for line in met if line["sent"]), met[0])
            line = next(line for line in reversed(lines) if line["odcid"] == first["odcid"])
            right = tuple(each for each in flight.then if each != "continues" or not line.get("knows"))
            judgement = _Judgement(replace(flight, then=right), role, line, packets, exit_code, ended=end.get("ended"))
            result = judgement.result()
            if flight.times and result.sent:
                times = (end if role is Role.CLIENT else line).get("times", ())
                honest = ends.get("", {}).get("times", ()) if role is Role.CLIENT else None
                meetings = sum(bool(each["sent"]) for each in lines) if role is Role.CLIENT else 1
                result = judgement.measured(result, usage, times, honest, meetings)
        elif exit_code is not None:
            why = "the client made no connection"
            result = FlightResult(flight=flight.name, role=role.value, verdict=ERROR, seen="no connection", why=why)
        else:
            continue
        results.append(result)
    return results


def unsupported(flight: HostileFlight, role: Role) -> FlightResult:
    """The result of an endpoint that does not support the flight's test case."""
    return FlightResult(flight=flight.name, role=role.value, verdict=UNSUPPORTED, seen="exit code 127")


def _not_met(flight: HostileFlight, role: Role, code: int) -> FlightResult:
    """The result of a client that ends with this code when its peer is honest."""
    if code == UNSUPPORTED_CODE:
        return unsupported(flight, role)
    seen = "it hung" if code == _TIMED_OUT else f"exit code {code}"
    return FlightResult(flight=flight.name, role=role.value, verdict=ERROR, seen=seen, why="its peer was honest")


class _Packets:
    """The decoded capture, and its records by their UDP payload."""

    def __init__(self, capture: Path, key_logs: Sequence[Path], own_key_logs: Sequence[Path] = ()) -> None:
        self._capture, self._all_key_logs = capture, [*key_logs, *own_key_logs]
        self.trace: Trace = decode_capture(capture, key_logs)
        file, _ = open_capture(capture)
        self.records: dict[bytes, tuple[int, int]] = {}
        self.datagrams: dict[int, tuple[int, int, int, int]] = {}  # record → ports (source, destination), bytes, ns
        for number, (time_ns, _, start, end, _) in enumerate(file.records(), start=1):
            frame = file.data[start:end]
            header = 14 + (40 if frame[12:14] == b"\x86\xdd" else 4 * (frame[14] & 15) if len(frame) > 14 else 0) + 8
            self.records.setdefault(frame[header:], (number, time_ns))
            source, target = (int.from_bytes(frame[header - at : header - at + 2]) for at in (8, 6))
            self.datagrams[number] = source, target, max(len(frame) - header, 0), time_ns
        packets = self.trace.packets
        odcids = zip(self.trace.connections["odcid"].to_pylist(), range(self.trace.connections.num_rows), strict=True)
        dcids = zip(packets["dcid"].to_pylist(), packets["connection"].to_pylist(), strict=True)
        # After Version Negotiation, a client can begin again with another destination, or with the same.
        self.connections = dict([*dcids, *odcids])
        self.kinds, self.kind_names = words(packets["type"])
        self.record_of = integers(self.trace.datagrams["record"])[integers(packets["datagram"])]
        self.times = integers(self.trace.datagrams["time_ns"])[integers(packets["datagram"])]
        of_clients = integers(packets["sender"]) == 0
        self.clients_end = int(self.times[of_clients].max()) if of_clients.any() else 0

    @cached_property
    def opened(self) -> "_Packets":
        """The same packets, decrypted also with the secrets of the tested endpoint."""
        return _Packets(self._capture, self._all_key_logs)

    def kind(self, packet: int) -> str:
        return str(self.kind_names[self.kinds[packet]])


@dataclass
class _Judgement:
    """What happened in one connection, and what follows from it."""

    flight: HostileFlight
    role: Role
    line: Mapping[str, Any]
    packets: _Packets
    exit_code: int | None
    ended: float | None = None  # when the client's process had ended, by the peer's clock in seconds
    sent: list[int] = field(default_factory=list)  # records of the flight
    answers: list[int] = field(default_factory=list)
    arrived: int = 0  # ns

    def result(self) -> FlightResult:
        if mistake := self.line.get("mistake"):
            return self._ending(ERROR, "the flight was not sent", f"its row has a mistake: {mistake}")
        if not self.line.get("applies", True):
            return self._ending(INAPPLICABLE, "the flight was not sent", f"not true for it: {self.flight.needs}")
        connection = self.packets.connections.get(bytes.fromhex(self.line["odcid"]))
        if connection is None:
            return self._ending(ERROR, "no connection", "the connection is not in the capture")
        self.connection = connection
        if missing := self._arrival():
            return self._ending(ERROR, "the flight was not sent", missing)
        if self.line.get("alive") is False:
            why = "the server answered no honest connection any more"
            return self._ending(FAILED, f"{self._close()[1] or 'no answer'}; then it was gone", why, crashed=True)
        if self.exit_code is not None and self.exit_code > 128 and self.exit_code != 128 + 15:
            signal = self.exit_code - 128
            return self._ending(FAILED, f"the client ended by signal {signal}", "it crashed", crashed=True)
        if self.exit_code == _PANIC:
            return self._ending(FAILED, f"the client ended with exit code {_PANIC}", "it panicked", crashed=True)
        return self._compare_unread() if self._is_unread() else self._compare()

    def _ending(self, verdict: str, seen: str, why: str = "", **others: Any) -> FlightResult:
        return FlightResult(
            flight=self.flight.name,
            role=self.role.value,
            verdict=verdict,
            seen=seen,
            why=why,
            sent=tuple(self.sent[:5]),
            answers=tuple(self.answers[:5]),
            **others,
        )

    def _arrival(self) -> str:
        """Find the datagrams of the flight. Returns why they don't count."""
        for datagram in self.line["sent"]:
            found = self.packets.records.get(bytes.fromhex(datagram["bytes"]))
            if found is None:
                return "a datagram of the flight is not in the capture of the endpoint"
            self.sent.append(found[0])
            self.arrived = max(self.arrived, found[1])
        if self.flight.times and self.sent and (came := len(self._came())) < self.line["count"]:
            return (
                f"the capture of the endpoint has {came} of the flight's {format_count(self.line['count'], 'datagram')}"
            )
        if not self.sent:
            trouble = self.line.get("trouble") or "the connection did not get that far"
            return f"the state of the flight was not reached: {trouble}"
        return ""

    def _came(self) -> list[int]:
        """The sizes of the datagrams that came from the flight's port between its first and its last datagram."""
        first, last, port = min(self.sent), max(self.sent), self._port()
        listed = self.packets.datagrams.items()
        return [size for number, (source, _, size, _) in listed if source == port and first <= number <= last]

    def measured(
        self,
        result: FlightResult,
        samples: Sequence[Sample],
        times: Sequence[float],
        honest: Sequence[float] | None,
        meetings: int,
    ) -> FlightResult:
        """The result with memory and CPU time; a note when they are unusual. `times`: of the samples before, between
        and after the meetings. `honest`: of a client's honest connection. `meetings`: connections in which a client
        met the flood."""
        spent = _spent(samples, times) if len(times) > 1 else None
        usual = _spent(samples, honest) if honest else None
        if spent is None or (honest is not None and usual is None):
            return result
        most, memory, cpu_s = spent
        before = memory[0]
        if usual is not None:
            before, cpu_s = usual[0], max(cpu_s - usual[2], 0.0) / meetings
        usage = FloodCost(
            before=before,
            most=most,
            after=() if usual is not None else tuple(memory[1:]),
            cpu_s=round(cpu_s, 2),
            datagrams=self.line["count"],
            sent=sum(self._came()),
        )
        result = replace(result, usage=usage)
        if result.verdict == PASSED and usage.excess:
            result = replace(result, verdict=NOTE, why=usage.excess)
        return result

    def _of_tested(self, table: Any) -> Any:
        sender = 0 if self.role is Role.CLIENT else 1
        return (integers(table["connection"]) == self.connection) & (integers(table["sender"]) == sender)

    def _closes(self) -> Bools:
        """Per frame: whether it is a CONNECTION_CLOSE of the endpoint."""
        frames = self.packets.trace.frames
        closing = named(frames["name"], "connection_close") | named(frames["name"], "application_close")
        closing &= self._of_tested(frames)
        return closing

    def _close(self) -> tuple[str, str, bool]:
        """The name of the error code with which the endpoint closed, this as text, whether it is an error."""
        frames = self.packets.trace.frames
        for row in np.flatnonzero(self._closes()).tolist():
            application = frames["name"][row].as_py() == "application_close"
            code, packet = frames["value"][row].as_py(), frames["packet"][row].as_py()
            if self.role is Role.SERVER and self.packets.times[packet] > self.packets.clients_end + _GRACE_NS:
                break  # the server is being stopped
            name = code_name(code, application=application)
            self.answers.append(int(self.packets.record_of[packet]))
            reason = (frames["payload"][row].as_py() or b"").decode("ascii", "replace")
            kind = self.packets.kind(packet)
            text = f"CONNECTION_CLOSE {name} in {_PACKETS.get(kind, kind)}" + (
                f" ({reason})" if reason.isprintable() and reason else ""
            )
            return name, text, not (code == 0 or (application and code == APPLICATION["H3_NO_ERROR"]))
        return "", "", False

    def _is_unread(self) -> bool:
        """Whether the server answered with Handshake packets, and the client had the keys of none: it had got no
        ServerHello."""
        packets = self.packets.trace.packets
        handshake = self._of_tested(packets) & named(packets["type"], "handshake")
        numbers = integers(packets["packet_number"])[handshake]
        answered = self.role is Role.SERVER and numbers.size > 0 and not self._closes().any()
        return answered and bool((numbers == NULL).all()) and not self.flight.tolerates

    def _compare_unread(self) -> FlightResult:
        """The verdict on such packets, which the endpoint's own secrets open."""
        self.packets = self.packets.opened
        if not self._closes().any():
            return self._ending(NOTE, "Handshake packets that the client can't read", "perhaps one is a close")
        result = self._compare()
        why = "the client can't read it: there is no ServerHello, and no close in an Initial packet (RFC 9000 §10.2.3)"
        return replace(result, verdict=NOTE, why=why) if result.verdict == PASSED else result

    def _stream_errors(self) -> list[str]:
        """Names of the codes with which the endpoint reset or stopped the stream of the flight."""
        frames = self.packets.trace.frames
        rows = self._of_tested(frames) & (named(frames["name"], "reset_stream") | named(frames["name"], "stop_sending"))
        rows &= (integers(frames["stream_id"]) == 0) & (self.role is Role.CLIENT or self.line.get("requested") != 0)
        chosen = np.flatnonzero(rows).tolist()
        self.answers += [int(self.packets.record_of[frames["packet"][row].as_py()]) for row in chosen]
        return [code_name(frames["value"][row].as_py(), application=True) for row in chosen]

    def _status(self) -> str:
        """The status of the response on stream 0, or nothing."""
        text = self.packets.trace.connections["http3"][self.connection].as_py()
        for stream in json.loads(text) if text else ():
            if stream["sender"] == 1 and stream["stream"] == 0:
                for kind, _, _, payload in stream["frames"]:
                    try:
                        lines = DynamicTable(most=0).section(bytes.fromhex(payload or "")) if kind == _HEADERS else []
                    except (QpackError, IndexError):
                        continue
                    for name, value in lines:
                        if name == b":status":
                            return (value or b"").decode("ascii", "replace")
        return ""

    def _continued(self) -> bool:
        """Whether the honest exchange after the flight succeeded."""
        if self.role is Role.CLIENT:
            return self.exit_code == 0
        requested = self.line.get("requested")
        return requested is not None and self._finished(requested)

    def _framed(self, name: str, value: str = "") -> bool:
        """Whether the endpoint sent a frame of this name after the flight. `value`: the limit or number in it."""
        frames = self.packets.trace.frames
        rows = np.flatnonzero(self._of_tested(frames) & named(frames["name"], name))
        rows = rows[integers(frames["value"])[rows] == int(value)] if value else rows
        packets = [
            packet
            for row in rows.tolist()
            if self.packets.times[packet := frames["packet"][row].as_py()] > self._sent_at()
        ]
        self.answers += [int(self.packets.record_of[packet]) for packet in packets[:3]]
        return bool(packets)

    def _finished(self, stream: int) -> bool:
        """Whether the endpoint ended its part of a stream."""
        frames = self.packets.trace.stream_frames
        rows = self._of_tested(frames) & frames["fin"].to_numpy() & (integers(frames["stream_id"]) == stream)
        return bool(rows.any())

    def _acknowledged(self) -> bool | None:
        """Whether the endpoint acknowledged a packet of the flight's last datagram. None: it has no packet with a
        number."""
        if not self.flight.sent.startswith("send"):
            return None  # changed TLS messages can't be left unread
        acks = self.packets.trace.ack_frames
        space_of = {"initial": "initial", "handshake": "handshake", "0rtt": "application", "1rtt": "application"}
        listed = [(space_of[part["space"]], part["number"]) for part in self.line["sent"][-1].get("packets", ())]
        if not listed:
            return None
        spaces, names = words(acks["space"])
        rows = np.flatnonzero(self._of_tested(acks) & (integers(acks["time_ns"]) >= self._sent_at())).tolist()
        for row in rows:
            for space, number in listed:
                if names[spaces[row]] == space and any(
                    each["first"] <= number <= each["last"] for each in acks["ranges"][row].as_py()
                ):
                    return True
        return False

    def _sent_at(self) -> int:
        return min(self.packets.records[bytes.fromhex(datagram["bytes"])][1] for datagram in self.line["sent"])

    def _port(self) -> int:
        """The peer's port from which the last datagram of the flight came."""
        return self.packets.datagrams[self.sent[-1]][0]

    def _volume(self) -> tuple[int, int]:
        """The UDP payload bytes that the endpoint got from that port during the flight, and those that it sent there.
        Other connections may have had the same port."""
        packets, port = self.packets.trace.packets, self._port()
        opening = (integers(packets["connection"]) == self.connection) & named(packets["type"], "initial")
        first = min(int(self.packets.times[opening].min()), self._sent_at())
        got = sent = 0
        for source, target, size, time_ns in self.packets.datagrams.values():
            if first <= time_ns <= self.arrived + _VOLUME_NS:
                got += size * (source == port)
                sent += size * (target == port)
        return got, sent

    def _unlimited(self) -> tuple[int, int] | None:
        """The first moment at which the server had sent to the peer's new port, after the flight, more than three times
        what had come from there: the bytes that came, and those that it sent."""
        old, own = self.packets.datagrams[self.sent[-1]][:2]
        of_connection = integers(self.packets.trace.packets["connection"]) == self.connection
        got = sent = 0
        for record in np.unique(self.packets.record_of[of_connection]).tolist():
            source, target, size, time_ns = self.packets.datagrams[record]
            if old not in (source, target):
                got += size * (target == own)
                sent += size * (source == own and time_ns > self.arrived)
            if sent > 3 * got:
                self.answers.append(record)
                return got, sent
        return None

    def _answered_there(self) -> bool:
        """Whether a PATH_RESPONSE went to that port."""
        frames = self.packets.trace.frames
        rows = np.flatnonzero(self._of_tested(frames) & named(frames["name"], "path_response")).tolist()
        records = [int(self.packets.record_of[frames["packet"][row].as_py()]) for row in rows]
        self.answers += records
        return any(self.packets.datagrams[record][1] == self._port() for record in records)

    def _renewed(self) -> bool:
        """Whether the endpoint went on, and with no connection ID that it had used as destination before."""
        packets, times = self.packets.trace.packets, self.packets.times
        used, late = (
            {packets["dcid"][row].as_py() for row in np.flatnonzero(self._of_tested(packets) & when).tolist()}
            for when in (times < self.arrived, times > self.arrived + _GRACE_NS)
        )
        return bool(late) and used.isdisjoint(late)

    def _on_its_paths(self) -> dict[str, str]:
        """The answers about addresses and connection IDs that the flight asks for and the endpoint gave, each with a
        sentence. `too much`: the endpoint sent more bytes than allowed."""
        then, seen = self.flight.then, dict[str, str]()
        for volume in VOLUMES.keys() & then:
            got, sent = self._volume()
            seen[volume if sent <= VOLUMES[volume] * got else "too much"] = f"{sent} bytes for {got}"
        if "renewed" in then and self._renewed():
            seen["renewed"] = "it went on with another connection ID"
        if "validated" in then and (moment := self._unlimited()):
            seen["validated"] = f"it sent the new port {moment[1]} bytes after the flight, when {moment[0]} had come"
        if "there" in then and self._answered_there():
            seen["there"] = "PATH_RESPONSE on the path of the challenge"
        return seen

    def _spoke_on(self, *, acknowledged: bool | None) -> bool:
        """Whether the endpoint sent packets other than closes, later than just after the flight. Nothing was on the way
        when the flight is our first datagrams. A slow endpoint that acknowledged nothing of the flight's end had not
        read the flight before it closed."""
        packets, times = self.packets.trace.packets, self.packets.times
        since = self._sent_at() + (_GRACE_NS if self.flight.sent.startswith("send") else 0)
        own = integers(self.packets.trace.frames["packet"])[self._closes()]
        if own.size and not acknowledged and "speaks" not in self.flight.then:
            since = max(since, int(times[own].min()))
        counts = self._of_tested(packets) & (times > since)
        counts &= ~named(packets["type"], "retry")  # refuses a token, too
        if self.role is Role.SERVER:  # later it is being stopped
            counts &= times <= self.packets.clients_end + _GRACE_NS
        if self.flight.closes:  # who has forgotten the connection may say so (RFC 9000 §10.2)
            counts &= ~named(packets["type"], "stateless_reset")
        counts[own] = False
        spoken: list[int] = np.flatnonzero(counts).tolist()
        self.answers += [int(self.packets.record_of[packet]) for packet in spoken[:3]]
        return bool(spoken)

    def _compare(self) -> FlightResult:
        """Compare what happened with the right answers."""
        name, text, is_error = self._close()
        if is_error:
            return self._judge_close(name, text)
        then, streams, acknowledged = self.flight.then, self._stream_errors(), self._acknowledged()
        status = self._status() if self.flight.is_http3 else ""
        ended = self.role is Role.CLIENT and self.exit_code not in (0, None, _TIMED_OUT)
        wants_stream = any(answer.startswith("stream ") for answer in then)
        seen = {f"stream {stream}": f"stream error {stream}" for stream in streams}
        if streams:
            seen["any-stream"] = f"stream error {', '.join(streams)}"
        spoke = not {"silent", "speaks"}.isdisjoint(then) and (
            self._spoke_on(acknowledged=acknowledged) or (self.role is Role.SERVER and self._continued())
        )
        seen |= {"speaks": "it sent more packets"} if spoke else {"silent": text or "nothing more"}
        seen |= self._on_its_paths()
        if status.startswith(("4", "5")) or ended:
            seen["refused"] = f"the client ended with exit code {self.exit_code}" if ended else f"status {status}"
        if status and streams and self._finished(0) and self.role is Role.SERVER:
            seen["unread"] = f"status {status}, and it stopped reading the request"
        seen |= self._served(text)
        seen |= {"acknowledged": "the packet was acknowledged"} if acknowledged else {}
        if continued := self._continued():
            seen["continues"] = "the connection continued"
            if not acknowledged:
                seen["ignored"] = "the packet was dropped, and the connection continued"
        right = {*then}
        if wants_stream and self.role is Role.CLIENT:
            # Nothing is left to reset when a response was read to its end: a client that fails has refused it. One that
            # stops reading with another code has told so with another code.
            right = {*then} - {"refused"} if set(streams) - GENERIC else {*then, "refused"}
        for answer, what in seen.items():
            if answer in right:
                return self._ending(PASSED, what)
        if "unread" in then and status and continued and self._finished(0) and self.role is Role.SERVER:
            # All of the request had arrived, so no STOP_SENDING is due from a server that reads no further.
            return self._ending(NOTE, f"status {status}", "perhaps it left the rest of the request unread")
        wants_error = not self.flight.tolerates
        told = wants_error and not self.flight.closes and not self.flight.times  # our close ends a flood
        soon = self.ended is not None and self.ended - self.line["fired"] < _SOON  # because it noticed the violation
        noticed = told and ended and (bool(streams) or soon)
        if (streams and wants_stream and not self._finished(0)) or ((text or streams) and noticed):
            # It noticed the violation, and told so with another code.
            return self._ending(
                NOTE, ", ".join(filter(None, (text, seen.get("any-stream")))), f"expected {self.flight.expected}"
            )
        if noticed and not text:
            return self._ending(
                NOTE, f"the client ended with exit code {self.exit_code}", "it told so by no CONNECTION_CLOSE"
            )
        parts = [
            seen.get("continues") or text or ("it sent packets" if spoke else "the connection went silent"),
            *(seen[each] for each in seen if " " in each),
        ]
        parts += [f"status {status}"] if status else []
        if self.role is Role.CLIENT and not continued:
            # How long a handshake may take is the client's own decision.
            waited = "the client hung" if self.line["confirmed"] else "the client waited for its handshake"
            parts.append(waited if self.exit_code == _TIMED_OUT else f"exit code {self.exit_code}")
        return self._wrong(parts, acknowledged=acknowledged, continued=continued)

    def _served(self, text: str) -> dict[str, str]:
        """The answers to a valid flight that it asks for and the endpoint gave, each with a sentence."""
        then, seen = self.flight.then, dict[str, str]()
        if "survives" in then and self.exit_code != _TIMED_OUT:
            seen["survives"] = text or ("the connection continued" if self._continued() else "nothing more")
        elif "survives" in then and self._began_again():
            seen["survives"] = "it began another connection"
        if "answered" in then and self._finished(0):
            seen["answered"] = "it answered"
        for answer in filter(is_frame, then):
            if self._framed(*answer.split()[1:]):
                seen[answer] = answer_text(answer)
        return seen

    def _began_again(self) -> bool:
        """Whether the client opened another connection between the flight and its end."""
        packets = self.packets.trace.packets
        connections, lasted = integers(packets["connection"]), (self.ended or 0.0) - self.line["fired"]
        later = (self.packets.times > self.arrived) & (self.packets.times < self._sent_at() + lasted * 1e9)
        later &= named(packets["type"], "initial") & (integers(packets["sender"]) == 0)
        return not set(connections[later]) <= set(connections[self.packets.times <= self.arrived])

    def _wrong(self, seen: list[str], *, acknowledged: bool | None, continued: bool) -> FlightResult:
        """The verdict on an endpoint that gave none of the right answers."""
        wants_error = not self.flight.tolerates
        must = self.flight.level == "MUST" or (self.flight.times and self.exit_code == _TIMED_OUT)
        why, verdict = f"expected {self.flight.expected}", FAILED if must else NOTE
        if acknowledged is False and wants_error:
            seen = [*seen, "the packet was not acknowledged"]
            if any(part["space"] != "1rtt" for datagram in self.line["sent"] for part in datagram.get("packets", ())):
                verdict, why = NOTE, f"{why}; perhaps it dropped the packet unread"
        return self._ending(verdict, ", ".join(seen), why, accepted=continued and wants_error)

    def _spoke_after_close(self) -> int:
        """The number of packets without CONNECTION_CLOSE that followed the endpoint's first one (RFC 9000 §10.2.1)."""
        packets = self.packets.trace.packets
        own = integers(self.packets.trace.frames["packet"])[self._closes()]
        late = self._of_tested(packets) & (self.packets.times > self.packets.times[own].min() + _BATCH_NS)
        late[own] = False
        late &= ~named(packets["type"], "stateless_reset")  # its state may be gone
        late &= integers(packets["packet_number"]) != NULL  # what can't be read may be a close, too
        return int(late.sum())

    def _judge_close(self, name: str, text: str) -> FlightResult:
        """The verdict on an endpoint that closed the connection with an error."""
        then, late = self.flight.then, self._spoke_after_close()
        text += f", then {late} other packet{'s' * (late > 1)}" if late else ""
        is_alert = name in ALERTS or name.startswith("alert ")
        right = name in then or not {"any-error", "survives"}.isdisjoint(then)
        right |= ("any-alert" in then and is_alert) or ("closed" in then and not late)
        right |= "speaks" in then and self._spoke_on(acknowledged=None)
        errors = [each for each in then if each in TRANSPORT or each in ALERTS or each in APPLICATION or "any-" in each]
        errors += [each for each in then if each.startswith("stream ")]
        if right or (errors and name in GENERIC):
            return self._ending(PASSED, text, code=name)
        if errors:
            why = f"expected {self.flight.expected}; RFC 9000 §11 allows another applicable code"
            return self._ending(NOTE, text, why, code=name)
        verdict = FAILED if self.flight.level == "MUST" else NOTE
        return self._ending(verdict, text, f"expected {self.flight.expected}", code=name)


def counts(results: Iterable[FlightResult]) -> dict[str, int]:
    """The number of results by verdict, the worst verdict first."""
    listed = [result.verdict for result in results]
    return {verdict: listed.count(verdict) for verdict in _ORDER if verdict in listed}
