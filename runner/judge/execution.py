"""Judges the records of a job's execution: endpoints, harness, interfaces, disturbance, files, floods, certificates,
and who is at fault."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from runner.decode.keys import LARGEST_KEY_LOG
from runner.inputs.inputs import flood_limit
from runner.model.facts import ConnectionFacts, ServerCertificate
from runner.model.result import (
    IMPAIRED,
    LINK_BROKEN,
    Artifacts,
    DirectionTruth,
    EndpointRecord,
    Evidence,
    Finding,
    InterfaceChange,
    InterfaceChangeKind,
    LinkTruth,
    NatMapping,
    Outcome,
    Result,
    another_attempt_helps,
)
from runner.model.run import CaseRecord, Kind
from runner.model.stack import OVER_TCP, Role, protocol_of
from runner.store.runs import check_numbers
from runner.units import format_count
from testcases.base import CaseEvidence

# Blames an endpoint that used NET_ADMIN against its own interface. Packets then can't reach the endpoint, or the
# endpoint sends frames that no link carries. Without these findings, the host would seem to be disturbed.

_MTU = 1500  # bytes, of every interface of a lane
_SMALLEST_MTU = 1280  # bytes; with less, an interface loses IPv6 and can't receive QUIC's Initial packets (RFC 8200 §5)
_REQUIREMENT = "An endpoint leaves its interface eth0 switched on, with its MTU, addresses and offloads."
_SECTION = "endpoint contract, Capabilities"
_KIND = InterfaceChangeKind


def broken_link(evidence: Evidence, truth: LinkTruth | None) -> Finding | None:
    """The finding when the simulator or a capture failed because of an endpoint's interface; None otherwise."""
    if evidence.error.get("code") in LINK_BROKEN:
        return _first(evidence, lambda change: change.kind in {_KIND.OFF, _KIND.DELETED})
    if truth is None or evidence.error:
        return None
    role, count = max((("client", truth.unsent_client), ("server", truth.unsent_server)), key=itemgetter(1))
    unsent = f"{format_count(count, 'packet')} could not be sent to the {role}"
    if truth.send_errors and (finding := _first(evidence, _stops_sending) or unreachable(evidence, role, unsent)):
        return finding
    return _malformed(evidence, truth)


def unreachable(evidence: Evidence, role: str, what: str) -> Finding | None:
    """The finding when packets did not reach an endpoint in a guest. Nobody watches the interfaces there, but no load
    disturbs the link, so only the endpoint can have changed its interface. With a middlebox, a box can have: None.
    `what`: what happened, as a sentence part."""
    if evidence.guest is None or evidence.via is not None or evidence.error or not role:
        return None
    return _changed(role, f"{what}: its eth0 is off, or has a smaller MTU")


def deaf_endpoint(evidence: Evidence, record: CaseRecord) -> Finding | None:
    """The finding when an endpoint changed its interface during the transfer so that no packet reaches it; None
    otherwise. It is a cause only in a job that failed."""
    ended = evidence.client.ended

    def is_deaf(change: InterfaceChange) -> bool:
        if ended is not None and change.time > ended:
            return False
        if change.kind is _KIND.MTU:
            return _is_below(change, _SMALLEST_MTU)
        if change.kind is _KIND.ADDRESS:
            is_link_local = change.value.startswith("fe80:")
            return not is_link_local and (":" in change.value) == (record.host == "server6")
        return True

    return _first(evidence, is_deaf)


def switched_off(evidence: Evidence) -> Finding | None:
    """The finding when an endpoint switched its interface off before the client ended; None otherwise. No capture has
    the packets that the link delivered meanwhile."""
    ended = evidence.client.ended
    off = {_KIND.OFF, _KIND.DELETED, _KIND.OVERRUN}
    return _first(evidence, lambda change: change.kind in off and (ended is None or change.time <= ended))


def misaddressed_frames(counts: Mapping[str, int], truth: LinkTruth | None) -> Finding | None:
    """The finding when most datagrams of an endpoint did not enter the link, because of their MAC address; None
    otherwise. `counts`: these datagrams by role. It is a cause only in a job that failed."""
    entered = {"client": truth.return_.packets_in, "server": truth.forward.packets_in} if truth is not None else {}
    for role, count in counts.items():
        if count > entered.get(role, count):
            return Finding(
                code="misaddressed-frames",
                requirement="An endpoint sends its packets to the MAC address of its gateway.",
                expected="frames that enter the link",
                actual=f"{format_count(count, 'datagram')} of the {role} with another MAC address, "
                f"{format_count(entered[role], 'packet')} entered",
                role=role,
                section=_SECTION,
            )
    return None


def _stops_sending(change: InterfaceChange) -> bool:
    return change.kind in {_KIND.OFF, _KIND.DELETED, _KIND.OVERRUN} or _is_below(change, _MTU)


def _is_below(change: InterfaceChange, mtu: int) -> bool:
    # In a folder of a stranger the value may be any text.
    return change.kind is _KIND.MTU and re.fullmatch("[0-9]{1,9}", change.value) is not None and int(change.value) < mtu


def _first(evidence: Evidence, matters: Callable[[InterfaceChange], bool]) -> Finding | None:
    """The finding about the first change that matters; None when there is none."""
    changes = [
        (change.time, role, change)
        for role, endpoint in (("client", evidence.client), ("server", evidence.server))
        for change in endpoint.interface_changes
        if matters(change)
    ]
    if not changes:
        return None
    time, role, change = min(changes, key=lambda each: each[0])
    return _changed(role, f"after {time:.2f} s the {role} {_ACTIONS[change.kind].format(change.value)}")


def _changed(role: str, actual: str) -> Finding:
    return Finding(
        code="interface-changed",
        requirement=_REQUIREMENT,
        expected="the interface as at the start of the job",
        actual=actual,
        role=role,
        section=_SECTION,
    )


_ACTIONS = {
    _KIND.OFF: "switched eth0 off",
    _KIND.DELETED: "deleted eth0",
    _KIND.MTU: "set the MTU of eth0 to {} bytes",
    _KIND.MAC: "changed the MAC address of eth0 to {}",
    _KIND.ADDRESS: "removed the address {} from eth0",
    _KIND.OVERRUN: "changed eth0 more often than bentpipe can note",
}


def _malformed(evidence: Evidence, truth: LinkTruth) -> Finding | None:
    """The finding about frames that no link carries. With a middlebox, its boxes sent them."""
    sent = {"client": truth.malformed_client, "server": truth.malformed_server}
    if evidence.via is not None or not any(sent.values()):
        return None
    role = max(sent, key=sent.__getitem__)
    return Finding(
        code="malformed-frames",
        requirement=_REQUIREMENT,
        expected=f"frames of one datagram each, of at most {_MTU} B, with a checksum",
        actual=f"{format_count(sent[role], 'frame')} of the {role} longer than that, or without a checksum",
        role=role,
        section=_SECTION,
    )


# Decides whether the host disturbed a job: compares the simulator's truth and the host's record with limits. Reads
# files only.

# Limits of the simulator's lateness (p99), in seconds. For a measurement the limit is 5 ms or 1 % of the RTT, whichever
# is more. Goodput between quic-go and quinn at 30 ms RTT was up to 2 % lower with a lateness of 2 to 4.4 ms, and 3 %
# lower with 9 ms. The verdict of a test case changes only when the lateness is close to a probe time-out (RFC 9002
# §6.2.1). A test case also has few packets, so its p99 is the lateness of a single packet.
_LATENESS_FLOOR, _LATENESS_SHARE = 5e-3, 0.01
_LATENESS_TEST_CASE = 25e-3
# Limits of the share of this host's CPU time that the hypervisor gave to other machines. Goodput of single jobs was up
# to 2 % lower at a share of 0.11 to 0.16, and 8 % lower at 0.22. A verdict tolerates more disturbance than a number:
# half of the CPU time may be missing.
_STEAL_LIMIT = 0.15
_STEAL_TEST_CASE = 0.50
# Limit of the share of the job's time in which some process waited for a CPU. Nine pairs were measured in 1 to 4 lanes
# on 2 cores. Up to a share of 0.67, their goodput was the same as in one lane (the slowest stack had 2 % less, which is
# its usual variation). From 0.8 on, it was 1 to 5 % lower. Page loads through middleboxes were measured in 1 to 2 lanes
# and compared with the fastest load of the same matrix cell. The 38 loads with a share below 0.55 took at most 1.09
# times as long. A load with 0.62 took 1.03 times as long, a load with 0.66 1.9 times, and a load with 0.69 1.7 times.
_PRESSURE_LIMIT = 0.65
# Limits of a product: the share of an endpoint's life in which it waited for a CPU, times the number of CPUs that it
# used. The kernel counts the waiting time of each container, so other work of the host has no effect on it. 209 jobs of
# nine pairs were measured in 1 to 3 lanes. With 30 ms RTT and a product up to 0.05, a pair kept at least 0.96 of its
# undisturbed goodput; with a product above 0.05 it kept 0.79 to 1. With 600 ms RTT, bursts of ACKs end slow start
# early: quinn's server with aioquic's client had 8.3 to 9.1 Mbit/s with a product up to 0.03, and 5 to 8.3 Mbit/s with
# a larger product. The product of a pair that runs alone is at most 0.03.
_ENDPOINT_LIMIT, _ENDPOINT_LIMIT_LONG = 0.05, 0.03
# Limit of that share alone. The product misses an endpoint that waits so much that it gets little done. 78 downloads in
# one or two lanes were compared with virtual time. Without picoquic's and tquic's servers, which vary by themselves,
# they took 0.93 to 1.07 times as long up to a share of 0.13 (n = 11), and 1.03 to 2.35 times from 0.2 on (n = 7). With
# these servers, they took 0.67 to 2.05 times as long up to 0.13 (n = 46, median 1.01), 1.2 to 5.1 times from 0.2 on
# (n = 8).
_WAITED_LIMIT = 0.18
_LONG_RTT = 0.1  # s
_THROTTLED_SHARE = 0.05  # share of the transfer's time


def load_truth(path: Path) -> LinkTruth | None:
    """The simulator's summary of a segment; None when the file is missing or broken."""
    try:
        document = json.loads(path.read_bytes())
        check_numbers(document)
        sockets = list(document["sockets"].values())
        return LinkTruth(
            seed=int(document["seed"]),
            forward=_direction(document["forward"]),
            return_=_direction(document["return"]),
            lateness_p99=float(document["lateness_s"]["p99"]),
            lateness_max=float(document["lateness_s"]["max"]),
            receive_lateness_p99=float(document["receive_lateness_s"]["p99"]),
            receive_lateness_max=float(document["receive_lateness_s"]["max"]),
            socket_drops=sum(int(side["kernel_drops"]) for side in sockets),
            spoofed_client=int(document["sockets"].get("left", {}).get("spoofed", 0)),
            spoofed_server=int(document["sockets"].get("right", {}).get("spoofed", 0)),
            malformed=sum(map(_malformed_frames, sockets)),
            malformed_client=_malformed_frames(document["sockets"].get("left", {})),
            malformed_server=_malformed_frames(document["sockets"].get("right", {})),
            unsent_client=int(document["forward"]["send_errors"]),
            unsent_server=int(document["return"]["send_errors"]),
            first_1rtt=None if document.get("first_1rtt_s") is None else float(document["first_1rtt_s"]),
            mappings=tuple(
                NatMapping(
                    time=float(mapping["time_s"]),
                    inner=str(mapping["inner"]),
                    outer=str(mapping["outer"]),
                    packets=int(mapping["packets"]),
                )
                for mapping in document.get("mappings", ())
            ),
            clock_step=float(document["clock_step_s"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _malformed_frames(side: dict[str, int]) -> int:
    return int(side.get("too_long", 0)) + int(side.get("checksum_missing", 0))


def _direction(document: dict[str, float]) -> DirectionTruth:
    return DirectionTruth(
        packets_in=int(document["packets_in"]),
        bytes_in=int(document["bytes_in"]),
        packets_out=int(document["packets_out"]),
        bytes_out=int(document["bytes_out"]),
        dropped_queue=int(document["dropped_queue"]),
        dropped_loss=int(document["dropped_loss"]),
        queue_max_packets=float(document["queue_max_packets"]),
        queue_mean_packets=float(document["queue_mean_packets"]),
        **{name: int(document.get(name, 0)) for name in IMPAIRED},
    )


@dataclass(frozen=True)
class Disturbance:
    """Why a job's numbers can't be trusted. `role`: the endpoint that waited for a CPU; None when the host or the link
    was disturbed."""

    why: str
    role: Role | None = None


def disturbed(evidence: Evidence, truth: LinkTruth | None, record: CaseRecord) -> Disturbance | None:
    """Why the job's numbers can't be trusted; None when the job was not disturbed."""
    why = None
    if evidence.real_link is None:
        if truth is None:
            return Disturbance("the simulator left no truth summary")
        # Without a server the client is not started: the link carried only probes, for which lateness doesn't matter.
        why = _link_disturbed(truth, record) if evidence.server_ready is not False else None
    why = why or _host_disturbed(evidence, record)
    # A real link has no simulator whose lateness shows the load: a time-out there may be the host's.
    late = evidence.real_link is not None and evidence.client.timed_out
    if why is None and (late or record.kind is Kind.MEASUREMENT):
        return _crowded(evidence, record)
    return Disturbance(why) if why else None


def _link_disturbed(truth: LinkTruth, record: CaseRecord) -> str | None:
    limit = max(_LATENESS_FLOOR, _LATENESS_SHARE * (record.link.rtt))
    if record.kind is Kind.TEST_CASE:
        limit = max(limit, _LATENESS_TEST_CASE)
    late = max(truth.lateness_p99, truth.receive_lateness_p99)
    if late > limit:
        return f"the simulator forwarded packets late: p99 {late * 1e3:.1f} ms, limit {limit * 1e3:.1f} ms"
    if truth.socket_drops or truth.malformed or truth.send_errors:
        return (
            f"the simulator's sockets dropped {format_count(truth.socket_drops, 'packet')}, rejected {truth.malformed} "
            f"as malformed, and could not send {truth.send_errors}"
        )
    if abs(truth.clock_step) > limit:
        return f"the wall clock of the host was changed by {truth.clock_step * 1e3:.1f} ms during the job"
    return None


def _host_disturbed(evidence: Evidence, record: CaseRecord) -> str | None:
    if evidence.capture_drops:
        return f"the captures lost {format_count(evidence.capture_drops, 'packet')}"
    if evidence.host_steal > (_STEAL_LIMIT if record.kind is Kind.MEASUREMENT else _STEAL_TEST_CASE):
        return f"{evidence.host_steal:.0%} of this host's CPU time went to other machines of its hypervisor (steal)"
    for role, endpoint in (("client", evidence.client), ("server", evidence.server)):
        if endpoint.throttled_s > _THROTTLED_SHARE * max(evidence.transfer_s, 1.0):
            return f"the CPU limit of the {role} stopped it for {endpoint.throttled_s:.2f} s"
    return None


def _crowded(evidence: Evidence, record: CaseRecord) -> Disturbance | None:
    pressures = evidence.endpoint_pressures
    if not pressures:
        share = evidence.cpu_pressure or 0.0
        reason = f"some process waited for a CPU in {share:.0%} of the time, limit {_PRESSURE_LIMIT:.0%}"
        return Disturbance(reason) if share > _PRESSURE_LIMIT else None
    is_long = record.link.rtt > _LONG_RTT
    limit = _ENDPOINT_LIMIT_LONG if is_long else _ENDPOINT_LIMIT
    endpoints = {Role.CLIENT: evidence.client, Role.SERVER: evidence.server}
    role = max(pressures, key=pressures.__getitem__)
    if pressures[role] <= limit:
        waited = {each: endpoints[each].cpu_pressure or 0.0 for each in pressures}
        role = max(waited, key=waited.__getitem__)
        if waited[role] <= _WAITED_LIMIT:
            return None
        reason = f"the {role.value} waited for a CPU in {waited[role]:.0%} of the time, limit {_WAITED_LIMIT:.0%}"
        return Disturbance(reason, role)
    endpoint = endpoints[role]
    return Disturbance(
        f"the {role.value} waited for a CPU in {endpoint.cpu_pressure:.0%} of the time and used {endpoint.cpu_s:.1f} s "
        f"of CPU time: share × CPUs used is {pressures[role]:.3f}, limit {limit}",
        role,
    )


# The harness's record of a job, and findings about faults of the harness. These findings blame no stack.

NOT_STARTED = {"client-not-started": Role.CLIENT, "server-not-started": Role.SERVER}
"""Code of a lane's error → role whose image the engine could not start, for example because the command does not exist
or the architecture is wrong."""


def with_record(result: Result, evidence: Evidence) -> Result:
    """The result with the times, the clock, the delivery and the real link that the harness recorded."""
    return replace(
        result,
        started_unix_s=evidence.started_unix_s,
        wall_s=evidence.wall_s,
        transfer_s=evidence.transfer_s,
        stages_s=evidence.stages_s,
        cpu_pressure=evidence.cpu_pressure,
        clock="virtual" if evidence.guest else "real",
        guest_speed=evidence.guest.speed if evidence.guest else None,
        cpu_s=evidence.guest.cpu_s if evidence.guest else 0.0,
        host=evidence.host,
        real_link=evidence.real_link,
        delivered=any(file.equal for file in evidence.files),
    )


def harness(code: str, actual: str, role: Role | None = None) -> Finding:
    """A finding against the harness itself. `role`: the endpoint that had too little CPU time, if there is one."""
    return Finding(
        code=code,
        requirement="The harness must run each job without disturbance. No stack is at fault.",
        expected="a valid job",
        actual=actual,
        role=role.value if role is not None else "",
    )


def harness_fault(evidence: Evidence, truths: Iterable[LinkTruth | None], record: CaseRecord) -> Finding | None:
    """The fault of the harness that makes the job invalid; None when there is none. `truths`: the simulator's summary
    of each segment.

    An image that could not be started is no fault of the harness.
    """
    if evidence.error:
        if evidence.error["code"] in NOT_STARTED:
            return None
        fault = harness(evidence.error["code"], evidence.error["message"])
        return replace(fault, log_tail=evidence.error.get("printed", ""))
    for truth, _ in zip(truths, record.link.segments, strict=False):
        if disturbance := disturbed(evidence, truth, record):
            return harness("disturbed", disturbance.why, disturbance.role)
    return None


def transient(result: Result) -> str | None:
    """Why the job gets another attempt, as part of a sentence; None when another attempt would not help. Errors of the
    harness and disturbances lead to another attempt. Verdicts never do.
    """
    if result.outcome is not Outcome.ERROR or not another_attempt_helps(result.findings[0].code):
        return None
    return result.findings[0].actual


# Judges the engine's records of the endpoints: start, readiness, exit codes, time-outs, full volumes.

UNSUPPORTED_EXIT = 127
_LOG_LINES = 12


def job_protocol(evidence: Evidence, record: CaseRecord) -> str:
    """The protocol (ALPN) that was requested from the endpoints."""
    wire_name = evidence.client.environment.get("TESTCASE")
    return protocol_of(wire_name) if wire_name else record.protocol


def missing_program(output: str) -> str:
    """The last line of an endpoint's output when it says that a program is missing; otherwise empty. A shell that can't
    find a program exits with 127, too."""
    last = output.strip().rpartition("\n")[-1].strip()
    return last[:160] if last.endswith(("not found", "No such file or directory")) else ""


def unsupported(evidence: Evidence, record: CaseRecord, artifacts: Artifacts) -> Finding | None:
    """The finding when an endpoint exited with the exit code for an unknown case; None when no endpoint did."""
    for role, endpoint in (("server", evidence.server), ("client", evidence.client)):
        if endpoint.exit_code == UNSUPPORTED_EXIT and not endpoint.stopped_by_us:
            missing = missing_program(log_tail(artifacts, role))
            why = f", because a program is missing: {missing}" if missing else ""
            return Finding(
                code="unsupported",
                requirement="An image exits with 127 when it doesn't support the case.",
                expected=f"support of '{endpoint.environment.get('TESTCASE', record.wire_names[role])}'",
                actual=f"the {role} exited with 127{why}",
                role=role,
            )
    return None


def execution_findings(evidence: Evidence, record: CaseRecord, artifacts: Artifacts) -> Iterator[Finding]:
    """Findings about the execution of the endpoints. Causes come before their consequences."""
    if evidence.error:
        yield Finding(
            code=evidence.error["code"],
            requirement="The image has an entry point that this host can run.",
            expected="a process",
            actual=evidence.error["message"],
            role=NOT_STARTED[evidence.error["code"]].value,
        )
        return
    yield from limit_findings(evidence, artifacts)
    server = evidence.server
    if server.exit_code is not None and not server.stopped_by_us:
        yield _exit_finding("server", server, "The server runs until it gets SIGTERM.", artifacts)
    elif evidence.server_ready is False:
        yield _not_ready(evidence, record, artifacts)
    yield from client_end(evidence, record, artifacts)


def limit_findings(evidence: Evidence, artifacts: Artifacts) -> Iterator[Finding]:
    """Findings about limits of bentpipe that an endpoint reached. They come first, because other failures may follow
    from them."""
    for role, endpoint in (("client", evidence.client), ("server", evidence.server)):
        if endpoint.output_flooded:
            yield Finding(
                code="output-flood",
                requirement="An endpoint does not print more than the limit.",
                expected="at most 16 MiB of output",
                actual="more; the endpoint was killed",
                role=role,
                log_tail=log_tail(artifacts, role),
            )
        if endpoint.volumes_full:
            yield Finding(
                code="volume-full",
                requirement="An endpoint keeps its files within the quota of its folders.",
                expected="less than the quota",
                actual=f"{', '.join(endpoint.volumes_full)} is full",
                role=role,
            )


def client_end(evidence: Evidence, record: CaseRecord, artifacts: Artifacts) -> Iterator[Finding]:
    """The finding when the client did not end by itself, in time, and with success."""
    client = evidence.client
    if client.timed_out:
        yield Finding(
            code="timeout",
            requirement="The client ends within the time-out of the case.",
            expected=f"the client ends by itself within {record.timeout:g} s",
            actual=f"still running after {record.timeout:g} s; {_progress(evidence)}",
            role="client",
            log_tail=log_tail(artifacts, "client"),
        )
    elif client.exit_code not in (0, None) and not client.stopped_by_us:
        yield _exit_finding("client", client, "The client exits with 0 when all files have arrived.", artifacts)


def silent_client(evidence: Evidence, artifacts: Artifacts) -> Iterator[Finding]:
    """The finding when a client reported success although the captures contain no connection. With a middlebox, the
    middlebox may be the reason."""
    client = evidence.client
    lacking = [file for file in evidence.files if file.received is None]
    if client.exit_code == 0 and not client.stopped_by_us and lacking and evidence.via is None:
        yield Finding(
            code="client-silent",
            requirement="The client exits with 0 when all files have arrived.",
            expected=f"a connection, and {format_count(len(evidence.files), 'file')}",
            actual=f"exit code 0, no connection, without {format_count(len(lacking), 'file')}",
            role="client",
            log_tail=log_tail(artifacts, "client"),
        )


def log_tail(artifacts: Artifacts, role: str) -> str:
    """The last lines that a container printed; empty when there is no log."""
    log = artifacts.folder / role / "output.log"
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def _not_ready(evidence: Evidence, record: CaseRecord, artifacts: Artifacts) -> Finding:
    if job_protocol(evidence, record) in OVER_TCP:
        requirement, expected = "The server listens on TCP port 443.", "a listening socket within 10 s"
        actual, section = "no listening socket", "endpoint contract, What an image must do"
    else:
        requirement = "The server listens on UDP port 443 and answers unknown versions (RFC 9000 §6.1)."
        expected, section = "Version Negotiation within 10 s", "RFC 9000 §6.1"
        actual = _instead_of_ready(evidence.server_udp_ports)
    return Finding(
        code="server-not-ready",
        requirement=requirement,
        expected=expected,
        actual=actual,
        role="server",
        section=section,
        log_tail=log_tail(artifacts, "server"),
    )


def _instead_of_ready(ports: tuple[int, ...]) -> str:
    if not ports:
        return "no answer; the server has no UDP socket"
    if 443 in ports:
        return "no answer from the server's socket on UDP port 443"
    return f"no answer; the server has UDP port {', '.join(str(port) for port in ports)} open instead"


def _progress(evidence: Evidence) -> str:
    received, total = sum(file.received or 0 for file in evidence.files), sum(file.size for file in evidence.files)
    return f"{received} of {total} B had been saved"


def _exit_finding(role: str, endpoint: EndpointRecord, requirement: str, artifacts: Artifacts) -> Finding:
    killed = " (killed: out of memory)" if endpoint.oom_killed and endpoint.exit_code == 137 else ""
    return Finding(
        code=f"{role}-exit",
        requirement=requirement,
        expected="exit code 0" if role == "client" else "no exit before the client's",
        actual=f"exit code {endpoint.exit_code}{killed}",
        role=role,
        log_tail=log_tail(artifacts, role),
    )


# Detects endpoints that flood the link. The captures of such a job are too large to decode.

_HEADERS = 4  # most bytes of a capture file per byte of its packets
_CLEARLY = 1.5  # ratio of sent bytes above which one endpoint is at fault


def flood(artifacts: Artifacts, record: CaseRecord, evidence: Evidence, truth: LinkTruth | None) -> Finding | None:
    """The finding when a job was ended because of a flood, or a capture is too large to decode; None otherwise."""
    limit = flood_limit(record.file_sizes)
    captures = (artifacts.client_capture, artifacts.server_capture)
    client, server = (path.stat().st_size if path.is_file() else 0 for path in captures)
    # Both captures contain the secrets that endpoints wrote: a large key log must not count as a flood of the peer.
    if max(client, server) <= limit + 2 * LARGEST_KEY_LOG and not evidence.flooded:
        return None
    sent = (client, server) if truth is None else _sent(client, server, truth)
    when = ", when the job was ended" if evidence.flooded else ""
    role = "client" if sent[0] > _CLEARLY * sent[1] else "server" if sent[1] > _CLEARLY * sent[0] else ""
    return Finding(
        code="packet-flood",
        requirement="An endpoint sends bytes in proportion to the transferred files, retransmissions included.",
        expected=f"captures of at most {limit:,} B for files of {sum(record.file_sizes):,} B",
        actual=f"{client:,} B at the client, {server:,} B at the server{when}",
        role=role,
        section="RFC 9002 §6.2.1, §7",
    )


def _sent(client: int, server: int, truth: LinkTruth) -> tuple[int, int]:
    """The bytes that each endpoint sent. A capture can be larger than all packets that entered the link, with their
    record headers. Then the capture contains other frames, and only the endpoint at that end can have sent them."""
    carried = _HEADERS * (truth.forward.bytes_in + truth.return_.bytes_in) + 2 * LARGEST_KEY_LOG
    return truth.return_.bytes_in + max(0, client - carried), truth.forward.bytes_in + max(0, server - carried)


# Compares the server's certificates with those of /certs. Codes are TLS alerts (RFC 8446 §6.2) as errors of QUIC (RFC
# 9001 §4.8).

WRONG_CERTIFICATE = "certificate-wrong"
ABOUT_CERTIFICATES = frozenset((*range(0x100 + 42, 0x100 + 47), 0x100 + 48))
REFUSALS = ABOUT_CERTIFICATES | {0x100 + 40}  # s2n-quic sends handshake_failure
_EXPIRED = 0x100 + 45


def wrong_certificates(context: CaseEvidence) -> Iterator[Finding]:
    """The server's certificates that made a client end its handshake by a TLS alert or in silence."""
    for connection in context.facts.connections:
        codes = {close.code for close in connection.closes if close.sender == "client"}
        if not connection.handshake_completed and (not codes or not codes.isdisjoint(REFUSALS)):
            yield from _wrong_certificate(connection, context, expired=_EXPIRED in codes)


def accepted_certificates(context: CaseEvidence) -> Iterator[Finding]:
    """The wrong certificate of a server in the first handshake that was completed all the same: the client does not
    verify certificates, and a client that does would end the connection."""
    for connection in context.facts.connections:
        if connection.handshake_completed and context.evidence.certificates and connection.certificate is not None:
            yield from _wrong_certificate(connection, context, expired=True)
            return


def _wrong_certificate(connection: ConnectionFacts, context: CaseEvidence, *, expired: bool) -> Iterator[Finding]:
    shown = connection.certificate
    if shown is not None and (fault := _certificate_fault(shown, connection, context, expired=expired)):
        yield Finding(
            code=WRONG_CERTIFICATE,
            requirement="A server serves /www with the certificate in /certs.",
            expected="the certificates of /certs/cert.pem",
            actual=fault,
            role="server",
            section="endpoint contract, content",
        ).proven_by(shown.place)


def _certificate_fault(
    shown: ServerCertificate, connection: ConnectionFacts, context: CaseEvidence, *, expired: bool
) -> str:
    """What is wrong with the server's certificates; empty when nothing is known. Jobs of older versions don't record
    the right certificates; then only what no certificate of /certs can be counts. `expired`: the client says so, or the
    right certificates are known."""
    given, host, origin = context.evidence.certificates, context.case.host, context.facts.origin_unix_ns
    if given and shown.chain[: len(given)] == given:
        return ""
    if shown.self_signed:
        return "a certificate that is signed by its own key, not by the CA"
    if shown.names is not None and (given or connection.sni == host) and host not in shown.names:
        return f"a certificate for {', '.join(shown.names[:5]) or 'no name'}, not for {host}"
    if expired and origin is not None and shown.begins is not None and shown.ends is not None:
        if origin / 1e9 > shown.ends:
            return "a certificate that had expired at the time of the job"
        if origin / 1e9 < shown.begins:
            return "a certificate that was not yet valid at the time of the job"
    if shown.linked is False:
        return "a chain in which a certificate is not signed by the next"
    if given and shown.chain == given[: len(shown.chain)]:
        return f"only {len(shown.chain)} of the {len(given)} certificates"
    return "other certificates" if given else ""
