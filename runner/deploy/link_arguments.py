"""Typed parameters of a job's link → the arguments of the simulator. The only place that knows them (sim/README.md)."""

from runner.deploy.addresses import READY_PORT
from runner.model.run import LinkParameters

LOGS = "/logs"
TRUTH = "truth.json"
PACKETS = "packets.bin"


def link_arguments(*, forward: LinkParameters, return_: LinkParameters, seed: int) -> list[str]:
    """The command line of `bentpipe/sim` in a lane, where eth0 is the client's side and eth1 the server's."""
    return [
        "--left=eth0",
        "--right=eth1",
        *_direction("forward", forward),
        *_direction("return", return_),
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
    ]


def _decimal(value: float) -> str:
    """Without an exponent, which not every parser of numbers takes, and without loss for what people write."""
    return f"{value:.12f}".rstrip("0").rstrip(".")
