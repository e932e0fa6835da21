"""Checks that the server stayed within the credit of flow control (RFC 9000 §4.1)."""

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.trace.intervals import Ints
from runner.trace.nouns import CreditExcess
from runner.trace.scope import Scope, integer_parameter
from runner.trace.vantage import Vantage

_UNIDIRECTIONAL = 2  # bit of a stream ID, RFC 9000 §2.1


def credit_excess(scope: Scope) -> CreditExcess | None:
    """The largest excess of the server over the credit that the client had granted. None when there is no excess, or no
    capture at the server.

    A grant passes the server's vantage point before the server receives the grant. Data passes it after the server sent
    the data. So an excess at this vantage point is certain.
    """
    vantage = scope.recording.server
    total = integer_parameter(scope.client_parameters, "initial_max_data")
    if vantage is None or total is None:
        return None
    frames = vantage.stream_frames
    rows = np.flatnonzero(scope.mine(frames, SERVER))
    rows = rows[np.argsort(frames["packet"][rows], kind="stable")]
    packets, streams = frames["packet"][rows], frames["stream_id"][rows]
    ends = frames["offset"][rows] + frames["length"][rows]
    fresh = np.zeros(len(rows), dtype=np.int64)
    worst: CreditExcess | None = None
    for stream in np.unique(streams):
        of_stream = np.flatnonzero(streams == stream)
        highest = np.maximum.accumulate(ends[of_stream])
        fresh[of_stream] = np.diff(highest, prepend=0)
        granted = _granted(scope, vantage, packets[of_stream], _first_limit(scope, int(stream)), stream=int(stream))
        worst = _worse(worst, scope, packets[of_stream], highest, granted, stream=int(stream))
    return _worse(worst, scope, packets, np.cumsum(fresh), _granted(scope, vantage, packets, total), stream=None)


def used_up(scope: Scope) -> frozenset[int]:
    """The request streams for which the server has sent all data that the client's last limits allow. Empty without a
    capture at the server."""
    vantage = scope.recording.server
    total = integer_parameter(scope.client_parameters, "initial_max_data")
    if vantage is None or total is None:
        return frozenset()
    frames, end = vantage.stream_frames, np.array([len(vantage.packets)])
    rows = np.flatnonzero(scope.mine(frames, SERVER))
    sent: dict[int, int] = {}
    for stream in np.unique(frames["stream_id"][rows]).tolist():
        mine = rows[frames["stream_id"][rows] == stream]
        sent[stream] = int((frames["offset"][mine] + frames["length"][mine]).max())
    requests = {stream: size for stream, size in sent.items() if stream % 4 == 0}
    if sum(sent.values()) >= _granted(scope, vantage, end, total)[0]:
        return frozenset(requests)
    return frozenset(
        stream
        for stream, size in requests.items()
        if size >= _granted(scope, vantage, end, _first_limit(scope, stream), stream=stream)[0]
    )


def limits_raised(scope: Scope) -> bool | None:
    """Whether the client raised a limit for response data; None when its first limits were not seen."""
    total = integer_parameter(scope.client_parameters, "initial_max_data")
    if total is None:
        return None
    vantage = scope.best(CLIENT)
    frames = vantage.frames
    if (frames["value"][scope.frames(vantage, CLIENT, "max_data")] > total).any():
        return True
    rows = scope.frames(vantage, CLIENT, "max_stream_data")
    streams, limits = frames["stream_id"][rows].tolist(), frames["value"][rows].tolist()
    return any(limit > _first_limit(scope, stream) for stream, limit in zip(streams, limits, strict=True))


def _first_limit(scope: Scope, stream: int) -> int:
    name = "uni" if stream & _UNIDIRECTIONAL else "bidi_remote" if stream & 1 else "bidi_local"
    return integer_parameter(scope.client_parameters, f"initial_max_stream_data_{name}") or 0


def _granted(scope: Scope, vantage: Vantage, packets: Ints, first: int, *, stream: int | None = None) -> Ints:
    """Per packet: the limit of a stream, or of the connection, at the time when the packet was sent."""
    frames = vantage.frames
    rows = scope.frames(vantage, CLIENT, "max_data" if stream is None else "max_stream_data")
    if stream is not None:
        rows = rows[frames["stream_id"][rows] == stream]
    rows = rows[np.argsort(frames["packet"][rows], kind="stable")]
    limits = np.maximum.accumulate(np.concatenate(([first], frames["value"][rows])))
    granted: Ints = limits[np.searchsorted(frames["packet"][rows], packets)]
    return granted


def _worse(
    known: CreditExcess | None,
    scope: Scope,
    packets: Ints,
    sent: Ints,
    granted: Ints,
    *,
    stream: int | None,
) -> CreditExcess | None:
    """The largest excess of these packets, or `known` if that is larger."""
    if not len(sent):
        return known
    at = int(np.argmax(sent - granted))
    excess = CreditExcess(
        stream_id=stream,
        granted=int(granted[at]),
        sent=int(sent[at]),
        place=scope.place(scope.best(SERVER), int(packets[at])),
    )
    return excess if excess.bytes > (known.bytes if known else 0) else known
