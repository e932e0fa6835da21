"""Bounds that no sender exceeds on a link: the data rate itself, and ideal slow start from an initial window."""

from dataclasses import dataclass

Line = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The fastest possible reception. `time` in seconds. `line`: a polyline of points (seconds since the first byte
    could arrive, received bytes)."""

    time: float
    efficiency: float
    line: Line


def rate_bound(*, file_size: int, data_rate: float) -> Bound:
    """The bound of a link that is full from the first byte to the last, without headers. `file_size` in bytes,
    `data_rate` in bit/s."""
    time = 8 * file_size / data_rate
    return Bound(time=time, efficiency=1.0, line=((0.0, 0.0), (time, float(file_size))))


def slow_start_bound(*, file_size: int, data_rate: float, rtt: float, initial_window: int) -> Bound:
    """The bound of ideal slow start (RFC 9002 §7.3.1), without loss, headers and limits of the receiver.

    RTT round k begins k RTTs after the first byte and carries `initial_window` · 2^k bytes at the link's data rate. As
    soon as a window fills a round, data flows without a gap. `efficiency` is the mean data rate between the first byte
    and the last, divided by `data_rate`. Sizes in bytes, `data_rate` in bit/s, `rtt` in seconds. Raises ValueError
    when a value is not positive; only `rtt` may be 0.
    """
    if file_size <= 0 or data_rate <= 0 or rtt < 0 or initial_window <= 0:
        raise ValueError("file size, data rate and initial window must be positive, the RTT at least 0")
    byte_rate = data_rate / 8
    begin, sent, window = 0.0, 0.0, float(initial_window)
    line = [(0.0, 0.0)]
    while window < byte_rate * rtt and sent + window < file_size:
        sent += window
        line.append((begin + window / byte_rate, sent))
        begin += rtt
        line.append((begin, sent))
        window *= 2
    time = begin + (file_size - sent) / byte_rate
    line.append((time, float(file_size)))
    return Bound(time=time, efficiency=file_size / byte_rate / time, line=tuple(line))
