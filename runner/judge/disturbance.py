"""Whether a job's numbers can be trusted: the simulator's truth and the host's record against limits. Files only."""

import json
from dataclasses import dataclass
from pathlib import Path

from runner.model.artifacts import Evidence
from runner.model.implementation import Role
from runner.model.result import IMPAIRED, DirectionTruth, LinkTruth, NatMapping
from runner.model.run import CaseRecord, Kind

# How late packets (p99) may be before a job no longer counts. A number is spoiled by 5 ms, or by 1 % of the RTT where
# that is more: goodput of quic-go and quinn with each other at 30 ms RTT was up to 2 % lower at 2 to 4.4 ms than at
# less, 3 % at 9 ms. A yes or no is spoiled only by what comes near a probe time-out (RFC 9002 §6.2.1). It has few
# packets, too: p99 is then the latest of them.
_LATENESS_FLOOR, _LATENESS_SHARE = 5e-3, 0.01
_LATENESS_TEST_CASE = 25e-3
# Of the CPU time of this host: goodput of single jobs was up to 2 % lower at 0.11 to 0.16, 8 % at 0.22. As with
# lateness, a yes or no bears what spoils a number: one core of two may go.
_STEAL_LIMIT = 0.15
_STEAL_TEST_CASE = 0.50
# Of the job's time in which somebody waited for a CPU. Goodput of nine pairs in 1 to 4 lanes on 2 cores: up to 0.67 as
# in one lane (2 % less for the slowest stack, which varies by as much), from 0.8 on 1 to 5 % less. Of 41 page loads on
# paths in 1 to 2 lanes the 38 below 0.55 took at most 1.09 times as long as the fastest of their cell, one at 0.62 took
# 1.03 times, the two at 0.66 and 0.69 took 1.9 and 1.7 times.
_PRESSURE_LIMIT = 0.65
# Of an endpoint's life, times the CPUs that it used, where the kernel says it by container; the host's other work is
# left out then. 209 jobs of nine pairs in 1 to 3 lanes: over 30 ms RTT at least 0.96 of the same pair's undisturbed
# goodput up to 0.05, above it 0.79 to 1; over 600 ms, where ACKs in bursts end slow start early, quinn's server with
# aioquic's client has 8.3 to 9.1 Mbit/s up to 0.03, then 5 to 8.3. Alone in a lane they have 0.03 at most.
_ENDPOINT_LIMIT, _ENDPOINT_LIMIT_LONG = 0.05, 0.03
_LONG_RTT = 0.1  # s
_THROTTLED_SHARE = 0.05  # of the transfer's time


def load_truth(path: Path) -> LinkTruth | None:
    """The simulator's summary, None when it is missing or broken."""
    try:
        document = json.loads(path.read_bytes())
        sockets = list(document["sockets"].values())
        return LinkTruth(
            seed=document["seed"],
            forward=_direction(document["forward"]),
            return_=_direction(document["return"]),
            lateness_p99=document["lateness_s"]["p99"],
            lateness_max=document["lateness_s"]["max"],
            receive_lateness_p99=document["receive_lateness_s"]["p99"],
            receive_lateness_max=document["receive_lateness_s"]["max"],
            socket_drops=sum(side["kernel_drops"] for side in sockets),
            spoofed_client=int(document["sockets"].get("left", {}).get("spoofed", 0)),
            spoofed_server=int(document["sockets"].get("right", {}).get("spoofed", 0)),
            malformed=sum(side["too_long"] + side["checksum_missing"] for side in sockets),
            send_errors=document["forward"]["send_errors"] + document["return"]["send_errors"],
            first_1rtt=document.get("first_1rtt_s"),
            mappings=tuple(
                NatMapping(time=one["time_s"], inner=one["inner"], outer=one["outer"], packets=one["packets"])
                for one in document.get("mappings", ())
            ),
            clock_step=document["clock_step_s"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _direction(document: dict[str, float]) -> DirectionTruth:
    return DirectionTruth(
        packets_in=int(document["packets_in"]),
        bytes_in=int(document["bytes_in"]),
        packets_out=int(document["packets_out"]),
        bytes_out=int(document["bytes_out"]),
        dropped_queue=int(document["dropped_queue"]),
        dropped_loss=int(document["dropped_loss"]),
        queue_max_packets=document["queue_max_packets"],
        queue_mean_packets=document["queue_mean_packets"],
        **{name: int(document.get(name, 0)) for name in IMPAIRED},
    )


@dataclass(frozen=True)
class Disturbance:
    """Why a job's numbers can't be trusted. `role`: of the endpoint that stood still; None: the host or the link."""

    why: str
    role: Role | None = None


def disturbed(evidence: Evidence, truth: LinkTruth | None, record: CaseRecord) -> Disturbance | None:
    """Why the job's numbers can't be trusted, None when they can."""
    why = None
    if evidence.real_link is None:
        if truth is None:
            return Disturbance("the simulator left no truth summary")
        # Without a server no client has run: the link carried probes alone, and their answer had seconds.
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
        return f"the simulator was late: p99 {late * 1e3:.1f} ms, limit {limit * 1e3:.1f} ms"
    if truth.socket_drops or truth.malformed or truth.send_errors:
        return (
            f"the simulator's sockets dropped {truth.socket_drops} packets, refused {truth.malformed} "
            f"and could not send {truth.send_errors}"
        )
    if abs(truth.clock_step) > limit:
        return f"the wall clock was set by {truth.clock_step * 1e3:.1f} ms during the job"
    return None


def _host_disturbed(evidence: Evidence, record: CaseRecord) -> str | None:
    if evidence.capture_drops:
        return f"the captures lost {evidence.capture_drops} packets"
    if evidence.host_steal > (_STEAL_LIMIT if record.kind is Kind.MEASUREMENT else _STEAL_TEST_CASE):
        return f"{evidence.host_steal:.0%} of this host's CPU time was stolen by its hypervisor"
    for role, endpoint in (("client", evidence.client), ("server", evidence.server)):
        if endpoint.throttled_s > _THROTTLED_SHARE * max(evidence.transfer_s, 1.0):
            return f"the {role} was denied CPU for {endpoint.throttled_s:.2f} s by its limit"
    return None


def _crowded(evidence: Evidence, record: CaseRecord) -> Disturbance | None:
    pressures = evidence.endpoint_pressures
    if not pressures:
        share = evidence.cpu_pressure or 0.0
        told = f"some process waited for a CPU in {share:.0%} of the time, limit {_PRESSURE_LIMIT:.0%}"
        return Disturbance(told) if share > _PRESSURE_LIMIT else None
    is_long = record.link.rtt > _LONG_RTT
    limit = _ENDPOINT_LIMIT_LONG if is_long else _ENDPOINT_LIMIT
    role = max(pressures, key=lambda one: pressures[one])
    if pressures[role] <= limit:
        return None
    endpoint = evidence.client if role is Role.CLIENT else evidence.server
    return Disturbance(
        f"the {role.value}, which used {endpoint.cpu_s:.1f} s of CPU, stood still for want of one in "
        f"{endpoint.cpu_pressure:.0%} of the time: share x CPUs used {pressures[role]:.3f}, limit {limit}",
        role,
    )
