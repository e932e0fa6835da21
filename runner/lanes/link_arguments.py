"""Typed parameters of a job's link → the arguments of the simulator. The only place that knows them (sim/README.md)."""

from collections.abc import Iterator

from runner.lanes.addresses import LEFT_NETS, READY_PORT, RIGHT_NETS
from runner.model.impairments import NO_PATH_IMPAIRMENTS, LinkImpairments, PathImpairments
from runner.model.link_record import LinkParameters

LOGS = "/logs"
TRUTH = "truth.json"
PACKETS = "packets.bin"


def link_arguments(
    *,
    forward: LinkParameters,
    return_: LinkParameters,
    seed: int,
    path: PathImpairments = NO_PATH_IMPAIRMENTS,
    lose_all: bool = False,
    flood: int | None = None,
) -> list[str]:
    """The command line of `bentpipe/sim` in a lane, where eth0 is the client's side and eth1 the server's.

    `lose_all`: losses take packets of every protocol, not UDP alone. `flood`: bytes of a capture that close the link.
    """
    return [
        "--left=eth0",
        "--right=eth1",
        *_direction("forward", forward),
        *_direction("return", return_),
        *_path(path),
        *(["--loss-protocol=any"] if lose_all else []),
        *([f"--flood={flood}"] if flood else []),
        f"--left-foreign={','.join(RIGHT_NETS)}",
        f"--right-foreign={','.join(LEFT_NETS)}",
        f"--seed={seed}",
        f"--truth={LOGS}/{TRUTH}",
        f"--packets={LOGS}/{PACKETS}",
        f"--ready-port={READY_PORT}",
    ]


def _direction(name: str, link: LinkParameters) -> list[str]:
    return [
        f"--{name}-rate={link.data_rate}",
        f"--{name}-delay={_decimal(link.delay)}",
        f"--{name}-queue={link.queue_packets}p",
        f"--{name}-loss={_decimal(link.loss)}",
        *(f"--{name}-{option}" for option in _impairments(link.impairments)),
    ]


def _impairments(asked: LinkImpairments) -> Iterator[str]:
    if asked.burst:
        yield f"burst={asked.burst}"
    if asked.loss_list:
        yield "loss-list=" + ",".join(f"{first}-{last}" for first, last in asked.loss_list)
    if asked.gilbert_elliott:
        yield "gilbert-elliott=" + ",".join(_decimal(value) for value in asked.gilbert_elliott)
    if asked.corruption:
        yield f"corruption={_decimal(asked.corruption)}"
    if asked.jitter:
        yield f"jitter={_decimal(asked.jitter)}"
    if asked.reorder:
        yield f"reorder={_decimal(asked.reorder)},{_decimal(asked.reorder_delay)}"
    if asked.mark_packets:
        yield f"mark={asked.mark_packets}"
    if asked.changes:
        steps = (
            f"{_decimal(step.time)},{_decimal(step.delay)},{step.data_rate},{_decimal(step.loss)}"
            for step in asked.changes
        )
        yield "changes=" + ";".join(steps)


def _path(asked: PathImpairments) -> Iterator[str]:
    if asked.outage:
        yield f"--outage={_decimal(asked.outage.start)},{_decimal(asked.outage.duration)}"
    if asked.mtu_fall:
        yield f"--mtu-fall={asked.mtu_fall.size},{_decimal(asked.mtu_fall.start)}"
    if asked.rebinding:
        change = asked.rebinding
        yield f"--rebind={change.what},{_decimal(change.first)},{_decimal(change.every)}"
    if asked.overtaking:
        yield "--overtaking=yes"


def _decimal(value: float) -> str:
    """Without an exponent, which not every parser of numbers takes, and without loss for what people write."""
    return f"{value:.12f}".rstrip("0").rstrip(".")
