"""The same connection in two captures: which segment is which, their numbers, what each acknowledgement is for."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from runner.decode.schema import CLIENT, SERVER
from runner.decode.tcp.segments import Segment, TcpConnection

Ranges = list[tuple[int, int]]
"""First and last number, both included, the highest range first."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What one segment of the client acknowledges anew, in numbers of the server's segments."""

    largest: int
    """Of all that were acknowledged so far."""
    ranges: Ranges


@dataclass(slots=True)
class Numbered:
    """One capture's view of a connection. Lists run along its segments."""

    connection: TcpConnection
    numbers: list[int]
    """Per segment: its place among all that its sender sent on the connection."""
    acknowledgements: dict[int, Acknowledgement] = field(default_factory=dict)
    """By number of the client's segment."""


def number_segments(client: TcpConnection | None, server: TcpConnection | None) -> tuple[Numbered | None, ...]:
    """Both views of one connection, numbered alike: the capture at the sender has the order.

    A proxy on the way makes two connections of one. Then no segment is the same, and each view has its own numbers.
    """
    views = [Numbered(one, [0] * len(one.segments)) if one is not None else None for one in (client, server)]
    for sender in (CLIENT, SERVER):
        near, far = views[sender], views[1 - sender]
        known: dict[tuple[object, ...], list[int]] = defaultdict(list)
        count = 0
        if near is not None:
            for at in _sent_by(near.connection, sender):
                near.numbers[at] = count
                known[near.connection.segments[at].identity].append(count)
                count += 1
        if far is not None:
            for at in _sent_by(far.connection, sender):
                same = known[far.connection.segments[at].identity]
                far.numbers[at] = same.pop(0) if same else count
                count = max(count, far.numbers[at] + 1)
    _acknowledge(views)
    return tuple(views)


def _sent_by(connection: TcpConnection, sender: int) -> list[int]:
    return [at for at, one in enumerate(connection.segments) if one.sender == sender]


def _acknowledge(views: Sequence[Numbered | None]) -> None:
    """Read acknowledgements where they leave: it is known there which of two transmissions had arrived (RFC 6298)."""
    at_client, at_server = views
    source = at_client or at_server
    if source is None:
        return
    found = _acknowledgements(source)
    for view in views:
        if view is not None:
            same = view is source or _is_same(source.connection, view.connection)
            view.acknowledgements = found if same else _acknowledgements(view)


def _is_same(one: TcpConnection, other: TcpConnection) -> bool:
    return one.initial == other.initial


def _acknowledgements(view: Numbered) -> dict[int, Acknowledgement]:
    pending: list[tuple[Segment, int]] = []
    found: dict[int, Acknowledgement] = {}
    largest = -1
    for segment, number in zip(view.connection.segments, view.numbers, strict=True):
        if segment.sender == SERVER:
            if segment.packet.payload:
                pending.append((segment, number))
            continue
        if segment.acknowledged is None:
            continue
        numbers = sorted(its for one, its in pending if _covers(segment, one))
        if numbers:
            done = set(numbers)
            pending = [(one, its) for one, its in pending if its not in done]
        largest = max([largest, *numbers])
        if largest >= 0:
            found[number] = Acknowledgement(largest, _ranges(numbers))
    return found


def _covers(acknowledgement: Segment, segment: Segment) -> bool:
    if acknowledgement.acknowledged is not None and segment.end <= acknowledgement.acknowledged:
        return True
    return any(start <= segment.offset and segment.end <= end for start, end in acknowledgement.sacked)


def _ranges(numbers: list[int]) -> Ranges:
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0])]
    return [(run[0], run[-1]) for run in reversed(runs)]
