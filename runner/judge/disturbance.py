"""Decides whether the host disturbed a job: compares the simulator's truth and the host's record with limits. Reads
files only."""

import json
from dataclasses import dataclass
from pathlib import Path

from runner.model.artifacts import Evidence
from runner.model.implementation import Role
from runner.model.result import IMPAIRED, DirectionTruth, LinkTruth, NatMapping
from runner.model.run import CaseRecord, Kind
from runner.store import check_numbers

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
            malformed=sum(map(_malformed, sockets)),
            malformed_client=_malformed(document["sockets"].get("left", {})),
            malformed_server=_malformed(document["sockets"].get("right", {})),
            send_errors=sum(int(document[way]["send_errors"]) for way in ("forward", "return")),
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


def _malformed(side: dict[str, int]) -> int:
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
    if why is None and record.kind is Kind.MEASUREMENT:
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
            f"the simulator's sockets dropped {truth.socket_drops} packets, rejected {truth.malformed} "
            f"as malformed, and could not send {truth.send_errors}"
        )
    if abs(truth.clock_step) > limit:
        return f"the wall clock of the host was changed by {truth.clock_step * 1e3:.1f} ms during the job"
    return None


def _host_disturbed(evidence: Evidence, record: CaseRecord) -> str | None:
    if evidence.capture_drops:
        return f"the captures lost {evidence.capture_drops} packets"
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
    role = max(pressures, key=pressures.__getitem__)
    if pressures[role] <= limit:
        return None
    endpoint = evidence.client if role is Role.CLIENT else evidence.server
    return Disturbance(
        f"the {role.value} waited for a CPU in {endpoint.cpu_pressure:.0%} of the time and used {endpoint.cpu_s:.1f} s "
        f"of CPU time: share × CPUs used is {pressures[role]:.3f}, limit {limit}",
        role,
    )
