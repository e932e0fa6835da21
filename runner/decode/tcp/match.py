"""Compares a connection in two captures: identifies segments, numbers them, and assigns acknowledgements to them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from runner.decode.schema import CLIENT, SERVER
from runner.decode.tcp.segments import Segment, TcpConnection

Ranges = list[tuple[int, int]]
"""Ranges of numbers: first and last number, both inclusive, the highest range first."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The acknowledgement in one segment of the client, in numbers of the server's segments."""

    largest: int
    """The highest number among all segments that were acknowledged so far."""
    ranges: Ranges


@dataclass(slots=True)
class Numbered:
    """One capture's view of a connection. Lists have one entry per segment."""

    connection: TcpConnection
    numbers: list[int]
    """The number of each segment among all segments of its sender on the connection."""
    acknowledgements: dict[int, Acknowledgement] = field(default_factory=dict)
    """Number of the client's segment → its acknowledgement."""


def number_segments(client: TcpConnection | None, server: TcpConnection | None) -> tuple[Numbered | None, ...]:
    """Both views of one connection, with equal numbers for equal segments. The numbers follow the order in the capture
    at the sender.

    When a proxy splits a connection, the two views show different connections. Then no segments are equal, and each
    view has its own numbers.
    """
    views = [Numbered(end, [0] * len(end.segments)) if end is not None else None for end in (client, server)]
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
    return [at for at, segment in enumerate(connection.segments) if segment.sender == sender]


def _acknowledge(views: Sequence[Numbered | None]) -> None:
    """Assign acknowledgements to segments. The capture at the client is used, because it shows which of two
    transmissions had arrived (RFC 6298)."""
    at_client, at_server = views
    source = at_client or at_server
    if source is None:
        return
    acknowledgements = _acknowledgements(source)
    for view in views:
        if view is not None:
            same = view is source or _is_same(source.connection, view.connection)
            view.acknowledgements = acknowledgements if same else _acknowledgements(view)


def _is_same(first: TcpConnection, second: TcpConnection) -> bool:
    return first.initial == second.initial


def _acknowledgements(view: Numbered) -> dict[int, Acknowledgement]:
    pending: list[tuple[Segment, int]] = []
    acknowledgements: dict[int, Acknowledgement] = {}
    largest = -1
    for segment, number in zip(view.connection.segments, view.numbers, strict=True):
        if segment.sender == SERVER:
            if segment.packet.payload:
                pending.append((segment, number))
            continue
        if segment.acknowledged is None:
            continue
        numbers = sorted(number for waiting, number in pending if _covers(segment, waiting))
        if numbers:
            done = set(numbers)
            pending = [(waiting, number) for waiting, number in pending if number not in done]
        largest = max([largest, *numbers])
        if largest >= 0:
            acknowledgements[number] = Acknowledgement(largest, _ranges(numbers))
    return acknowledgements


def _covers(acknowledgement: Segment, segment: Segment) -> bool:
    if acknowledgement.acknowledged is not None and segment.end <= acknowledgement.acknowledged:
        return True
    return any(start <= segment.offset and segment.end <= end for start, end in acknowledgement.sacked)


def _ranges(numbers: list[int]) -> Ranges:
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0])]
    return [(run[0], run[-1]) for run in reversed(runs)]
