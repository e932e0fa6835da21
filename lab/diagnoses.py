"""Precision and recall of the diagnoses on the labelled set.

`python -m lab.diagnoses FOLDER [--part look|held] [--lines]` reads the tables that `lab.transfers` wrote, and diagnoses
each transfer as bentpipe diagnoses a job. For a transfer over a real link, the data rate is that of the contract, and
delay, queue and truth are unknown.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.oracle import Passages, read_passages
from runner.decode import load_tables
from runner.diagnose.explain import explained, measured
from runner.model.link import LinkChange, LinkImpairments, LinkParameters, LinkRecord, MtuFall, Outage, PathImpairments
from runner.model.result import DirectionTruth, LinkTruth
from runner.model.run import CaseRecord, Kind
from runner.trace.establish import facts

GOAL = 0.95
"""The goal for precision and for recall of each detector."""
_LEAST_LABELS = 8  # a detector with fewer labels in the judged part is reported, but need not reach the goal


@dataclass
class Counts:
    """The counts of one detector in one part of a set: labels found, labels missed, and diagnoses without a label."""

    right: int = 0
    missed: int = 0
    wrong: int = 0

    @property
    def labels(self) -> int:
        return self.right + self.missed

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.labels if self.labels else 1.0

    @property
    def is_good(self) -> bool:
        return min(self.precision, self.recall) >= GOAL

    @classmethod
    def total(cls, counts: Iterable["Counts"]) -> "Counts":
        """The counts of all detectors together."""
        every = list(counts)
        return cls(*(sum(getattr(each, name) for each in every) for name in ("right", "missed", "wrong")))


def judge(
    counts: dict[str, Counts], wanted: frozenset[str], unsure: frozenset[str], diagnosed: frozenset[str]
) -> list[str]:
    """Count the diagnoses of one transfer, except those that are `unsure`. Returns diagnoses without a label as `+code`
    and missed labels as `-code`."""
    wanted, diagnosed = wanted - unsure, diagnosed - unsure
    for code in wanted | diagnosed:
        each = counts.setdefault(code, Counts())
        each.right += code in wanted and code in diagnosed
        each.missed += code not in diagnosed
        each.wrong += code not in wanted
    return [f"+{code}" for code in sorted(diagnosed - wanted)] + [f"-{code}" for code in sorted(wanted - diagnosed)]


def table(counts: Mapping[str, Counts]) -> Iterator[str]:
    """A row for every diagnosis, then a row for all diagnoses together."""
    yield f"{'':28} {'labels':>6} {'found':>6} {'missed':>6} {'wrong':>6} {'precision':>9} {'recall':>7}"
    for code, each in [*sorted(counts.items()), ("all", Counts.total(counts.values()))]:
        yield (
            f"{code:28} {each.labels:6} {each.right:6} {each.missed:6} {each.wrong:6} "
            f"{each.precision:9.3f} {each.recall:7.3f}"
        )


@dataclass(frozen=True)
class Diagnosed:
    """One transfer: its label, and the diagnoses that were made."""

    name: str
    wanted: frozenset[str]
    unsure: frozenset[str]
    diagnosed: frozenset[str]
    limit: str
    """The limit with the largest share in the generator's records; empty when that share is less than 60 %."""
    named: str
    """The limit with the largest share according to bentpipe."""


def diagnose(folder: Path) -> Diagnosed:
    """Diagnose one transfer again."""
    label, spec = (json.loads((folder / name).read_bytes()) for name in ("label.json", "spec.json"))
    client_side, server_side = load_tables(folder / "client_tables"), load_tables(folder / "server_tables")
    record = case_record(spec, label["advertised"])
    known = facts(client_side, server_side)
    truth = None if label["advertised"] else link_truth(folder, spec, label)
    numbers = measured(client_side, server_side, known, record)
    explanation = explained(client_side, server_side, known, numbers, record=record, truth=truth)
    shares = {name: share for name, share in explanation.limits.items() if name != "handshake"}
    limits = {name: share for name, share in label["limits"].items() if share >= 0.6}
    return Diagnosed(
        name=folder.name,
        wanted=frozenset(label["wanted"]),
        unsure=frozenset(label["unsure"]),
        diagnosed=frozenset(diagnosis.code for diagnosis in explanation.diagnoses),
        limit=max(limits, default=""),
        named=max(shares, key=lambda name: shares[name], default=""),
    )


def case_record(spec: dict[str, Any], advertised: float | None) -> CaseRecord:
    """The record that a run would have stored: with the settings of an emulated link, or with the data rate of a real
    link's contract."""
    forward, back = (_parameters(spec[name], advertised) for name in ("forward", "return"))
    if advertised is not None:
        back = LinkParameters(
            data_rate=round(spec["return"]["rate"] * advertised), delay=0.0, queue_packets=0, loss=0.0
        )
    outages, fall = spec["path"].get("outages", ()), spec["path"].get("mtu_fall")
    path = PathImpairments(
        outage=Outage(start=outages[0][0], duration=outages[0][1]) if outages else None,
        mtu_fall=MtuFall(start=fall[0], size=fall[1]) if fall else None,
    )
    return CaseRecord(
        name="transfer",
        case="transfer",
        abbreviation="T",
        kind=Kind.TEST_CASE,
        description="",
        link=LinkRecord.single("", forward, back, PathImpairments() if advertised else path),
        wire_names={"client": "transfer", "server": "transfer"},
        file_sizes=(spec["size"],),
        timeout=60,
        iterations=1,
    )


def _parameters(direction: dict[str, Any], advertised: float | None) -> LinkParameters:
    if advertised is not None:
        return LinkParameters(data_rate=round(direction["rate"] * advertised), delay=0.0, queue_packets=0, loss=0.0)
    return LinkParameters(
        data_rate=round(direction["rate"]),
        delay=direction["delay"],
        queue_packets=direction["queue"],
        loss=direction.get("loss", 0.0),
        impairments=LinkImpairments(
            gilbert_elliott=tuple(direction["bursty_loss"]) if "bursty_loss" in direction else None,
            loss_list=tuple((first, last) for first, last in direction.get("lost", ())),
            reorder=direction.get("reorder", 0.0),
            reorder_delay=direction.get("reorder_delay", 0.0),
            jitter=direction.get("jitter", 0.0),
            mark_packets=direction.get("mark", 0),
            changes=tuple(
                # The generator counts time from the first packet of the direction, the simulator from the first packet
                # of both directions.
                LinkChange(time=time + delay, delay=delay, data_rate=round(rate))
                for time, rate, delay in direction.get("changes", ())
            ),
        ),
    )


def link_truth(folder: Path, spec: dict[str, Any], label: dict[str, Any]) -> LinkTruth:
    """The generator's records in the form of the simulator's summary."""
    passages = read_passages(folder)
    return LinkTruth(
        seed=spec["seed"],
        forward=_direction(passages["forward"]),
        return_=_direction(passages["return"]),
        lateness_p99=0.0,
        lateness_max=0.0,
        first_1rtt=label["first_1rtt"],
    )


def _direction(passages: Passages) -> DirectionTruth:
    delivered = passages.delivered
    return DirectionTruth(
        packets_in=len(passages.sent),
        bytes_in=int(passages.length.sum()),
        packets_out=int(delivered.sum()),
        bytes_out=int(passages.length[delivered].sum()),
        dropped_queue=passages.count("queue"),
        dropped_loss=passages.count("loss"),
        queue_max_packets=float(passages.waiting.max(initial=0)),
        queue_mean_packets=float(passages.waiting.mean()) if len(passages.waiting) else 0.0,
        dropped_outage=passages.count("outage"),
        dropped_mtu=passages.count("mtu"),
        marked=passages.count("marked"),
        held_back=passages.held_back,
    )


def main(arguments: list[str]) -> int:
    """Print the table of a part. Returns 0 when every detector with at least 8 labels reaches the goal, and all
    detectors together reach it, too."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", default="look")
    parser.add_argument("--lines", action="store_true", help="print the errors of each transfer")
    parser.add_argument("--only", default="", help="only transfers whose names begin with this text")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    folders = sorted(path.parent for path in (options.folder / options.part).glob(f"{options.only}*/label.json"))
    if not folders:
        parser.error(f"{options.folder / options.part} has no labelled transfer: call lab.transfers first.")
    with ProcessPoolExecutor(options.workers) as pool:
        transfers = list(pool.map(diagnose, folders))
    counts: dict[str, Counts] = {}
    for transfer in transfers:
        errors = judge(counts, transfer.wanted, transfer.unsure, transfer.diagnosed)
        if transfer.limit not in ("", transfer.named):
            errors.append(f"limit {transfer.limit}, named {transfer.named}")
        if options.lines and errors:
            print(f"{transfer.name}: {', '.join(errors)}")
    print(f"\n{options.part}: {len(transfers)} transfers")
    print("\n".join(table(counts)))
    limited = [transfer for transfer in transfers if transfer.limit]
    right = sum(transfer.limit == transfer.named for transfer in limited)
    print(f"the limit with at least 60 % of the time was named in {right} of {len(limited)} transfers that have one")
    judged = [each for each in counts.values() if each.labels >= _LEAST_LABELS]
    return 0 if all(each.is_good for each in (*judged, Counts.total(counts.values()))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
