"""Numbers and diagnoses of a job, for its result and its plots."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from runner.decode import Trace
from runner.decode.schema import SERVER
from runner.diagnose import Explanation, explain
from runner.model.result import LinkTruth, Sample
from runner.model.run import CaseRecord
from runner.trace import TraceFacts, sample
from runner.trace.qlog import CongestionWindow, congestion_window
from runner.trace.transfer import Transfer
from runner.trace.vantage import Recording


def measured(client_side: Trace, server_side: Trace, facts: TraceFacts, record: CaseRecord) -> Sample:
    """The numbers of one iteration of a case."""
    return sample(
        client_side,
        server_side,
        facts,
        file_sizes=record.file_sizes,
        forward=record.forward,
        return_=record.return_,
    )


def explained(
    client_side: Trace,
    server_side: Trace,
    facts: TraceFacts,
    numbers: Sample,
    *,
    record: CaseRecord,
    truth: LinkTruth | None,
) -> Explanation:
    """The reasons why the transfer of a job was slow; empty unless both captures have response data."""
    transfer = Transfer(Recording(client_side, server_side))
    return explain(
        transfer, facts, numbers, forward=record.forward, return_=record.return_, path=record.impairments, truth=truth
    )


def window_of(qlogs: Path, server_side: Trace) -> CongestionWindow | None:
    """The server's congestion window from its qlogs; None when the server sent nothing, or no qlog has a window."""
    sent = server_side.datagrams.filter(pc.field("sender") == SERVER).column("time_ns")
    return congestion_window(qlogs, pc.min(sent).as_py()) if len(sent) else None


def marks(explanation: Explanation, *, origin_ns: int, window: CongestionWindow | None) -> dict[str, object]:
    """The explanation for `series.json`: `limits` as (start, end, limit), `diagnoses` as (start, end, code, sentence),
    and the curves of `Panels.document`. `in_flight` also gets the server's congestion window in bytes at the same
    moments; the list is empty without a window in a qlog. Times are seconds since the origin. `origin_ns`: Unix time
    of the origin."""
    panels: dict[str, Any] = {}
    if explanation.panels is not None:
        panels = explanation.panels.document()
        moments = np.arange(len(explanation.panels.in_flight)) * explanation.panels.interval
        sizes = [] if window is None else window.at(origin_ns + np.rint(moments * 1e9).astype(np.int64))
        panels["in_flight"]["congestion_window"] = sizes
    return panels | {
        "limits": [[round(span.start, 4), round(span.end, 4), span.limit.value] for span in explanation.spans],
        "diagnoses": [
            [round(diagnosis.start, 4), round(diagnosis.end, 4), diagnosis.code, diagnosis.sentence]
            for diagnosis in explanation.diagnoses
        ],
    }
