"""Changes the times of a trace to the clock of another host."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from runner.decode.schema import Trace

if TYPE_CHECKING:  # `decode` needs no real link
    from runner.model.real_link import Clock

_TIMES = ("time_ns", "first_time_ns")
_TABLES = ("datagrams", "stream_frames", "ack_frames", "frames", "connections")


def on_server_clock(trace: Trace, clock: "Clock") -> Trace:
    """The trace of the client, with all times on the server's clock. The order of rows stays the same."""
    tables = {name: _moved(getattr(trace, name), clock) for name in _TABLES}
    first = trace.meta.first_time_ns
    if first is not None:
        first -= round(clock.ahead(clock.server_time(first / 1e9)) * 1e9)
    return replace(trace, **tables, meta=replace(trace.meta, first_time_ns=first))


def _moved(table: pa.Table, clock: "Clock") -> pa.Table:
    for name in _TIMES:
        if name in table.column_names:
            column = table.column(name).combine_chunks()
            known = np.array(column.fill_null(0))
            since = (known / 1e9 - clock.at - clock.offset) / (1 + clock.drift)
            ahead = clock.offset + clock.drift * since
            times = pa.array(known - np.rint(ahead * 1e9).astype(np.int64), mask=np.array(column.is_null()))
            table = table.set_column(table.column_names.index(name), table.schema.field(name), times.cast(pa.int64()))
    return table
