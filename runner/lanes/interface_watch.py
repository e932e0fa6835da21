"""Watches the interface of an endpoint, which its image may change with NET_ADMIN.

An image that makes its MTU small or switches it off keeps the simulator from sending. Without this watch, the host
would seem to be disturbed, and no endpoint would be blamed.
"""

from collections.abc import Sequence
from pathlib import Path

from runner.errors import LaneError
from runner.lanes.resident import Holder
from runner.model.artifacts import InterfaceChange, InterfaceChangeKind

_SCRIPT = (Path(__file__).parent / "scripts" / "interface_watch.py").read_text()
_CHANGES = "/interface-changes"  # file in the holder, to which the script writes
# Runs as long as the holder, because a program that ends would stay in the holder's table of processes.
_START = (
    f'python3 -ISBc "$0" > {_CHANGES} 2>&1 &'
    f" for _ in $(seq 500); do grep -q watching {_CHANGES} && exit; sleep 0.01; done; exit 1"
)
_NUMBER = "/sys/class/net/eth0/ifindex"
_ON = "on"


def begin_watch(holder: Holder) -> None:
    """Watch eth0 in the namespace of `holder` until the holder ends. Raises LaneError."""
    if holder.execute(["sh", "-c", _START, _SCRIPT])[0] != 0:
        raise LaneError("holder-silent", "The watch of an interface did not start.")


class InterfaceWatch:
    """The changes of eth0 in the namespace of a holder during one job. Make it after the wiring, before the endpoint
    starts. Raises LaneError."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._number = holder.execute(["cat", _NUMBER])[1].strip()

    def changes(self, began: float) -> tuple[InterfaceChange, ...]:
        """The changes so far. `began`: the beginning of the job in seconds since 1970. Raises LaneError."""
        _, printed = self._holder.execute(["cat", _CHANGES])
        return parse_changes(printed.splitlines(), self._number, began)


def parse_changes(lines: Sequence[str], number: str, began: float) -> tuple[InterfaceChange, ...]:
    """The changes of the interface with this number, from the lines of scripts/interface_watch.py."""
    changes = []
    for line in lines:
        words = line.split()
        if len(words) < 3 or words[0] != number or words[2] == _ON:
            continue
        value = words[3] if len(words) > 3 else ""
        changes.append(InterfaceChange(kind=InterfaceChangeKind(words[2]), value=value, time=float(words[1]) - began))
    return tuple(changes)
