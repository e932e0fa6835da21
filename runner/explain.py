"""Numbers and diagnoses of a job, as its result and its plots hold them."""

from runner.decode import Trace
from runner.diagnose import Explanation, explain
from runner.model.result import LinkTruth, Sample
from runner.model.run import CaseRecord
from runner.trace import TraceFacts, sample
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
    """Why the job's transfer took its time; empty when its captures hold no response data."""
    transfer = Transfer(Recording(client_side, server_side))
    return explain(
        transfer, facts, numbers, forward=record.forward, return_=record.return_, path=record.impairments, truth=truth
    )


def marks(explanation: Explanation) -> dict[str, object]:
    """What `series.json` carries of it: `limits` as (start, end, limit), `diagnoses` as (start, end, code, sentence);
    times in seconds since the origin; and what was under way meanwhile (`Panels.document`)."""
    panels = {} if explanation.panels is None else explanation.panels.document()
    return panels | {
        "limits": [[round(one.start, 4), round(one.end, 4), one.limit.value] for one in explanation.spans],
        "diagnoses": [
            [round(one.start, 4), round(one.end, 4), one.code, one.sentence] for one in explanation.diagnoses
        ],
    }
