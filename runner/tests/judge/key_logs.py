"""Judges good recordings with missing or wrong parts in their key logs, and compares the outcomes with the expected
outcomes.

The expectation uses neither the judge nor the decoder's reading of key logs: the original recording shows which secrets
its packets need, and the changed key logs show which of these secrets are left. If all are left, the outcome must be
*succeeded*. If some are missing, it must be *error*: not *failed*, because no endpoint did anything wrong, and not
*succeeded*, because there is no proof. If none is left, it depends on the case: it must be *succeeded* when its purpose
can be seen without secrets, else *error*.
"""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from runner.decode.columns import Trace
from runner.decode.tables import decode_capture
from runner.judge.judges import analyse
from runner.model.result import Artifacts, Outcome, Result
from runner.model.run import CaseRecord, Job
from runner.plan.catalog import Catalog
from runner.tests.recordings.conformance import GOOD, GOOD_ONES, changed
from runner.tests.records import RECORDINGS

Lines = list[str]
Cut = Callable[[Lines], Lines]

_SECRET = re.compile(r"([A-Z_0-9]+) ([0-9a-fA-F]{64}) ([0-9a-fA-F]{64}|[0-9a-fA-F]{96})")
Secret = tuple[str, str, str]
"""label, client random, secret, in lower-case hexadecimal"""


def secrets(lines: Lines) -> dict[Secret, None]:
    """The complete secrets of a key log, in its order."""
    match = (_SECRET.fullmatch(line.strip()) for line in lines)
    return dict.fromkeys((secret[1], secret[2].lower(), secret[3].lower()) for secret in match if secret)


def _without(drop: Callable[[Secret], bool]) -> Cut:
    def cut(lines: Lines) -> Lines:
        return [line for line in lines if not any(drop(secret) for secret in secrets([line]))]

    return cut


def _label(label: str) -> Cut:
    return _without(lambda secret: secret[0] == label)


def _one_connection(last: bool) -> Cut:
    def cut(lines: Lines) -> Lines:
        randoms = [secret[1] for secret in secrets(lines)]
        chosen = randoms[-1 if last else 0] if randoms else ""
        return _without(lambda secret: secret[1] == chosen)(lines)

    return cut


CUTS: Mapping[str, Cut] = {
    "nothing but a comment": lambda _: ["# a key log"],
    "handshake secrets alone": _without(lambda secret: "HANDSHAKE" not in secret[0]),
    "traffic secrets alone": _without(lambda secret: "HANDSHAKE" in secret[0]),
    "no server traffic secret": _label("SERVER_TRAFFIC_SECRET_0"),
    "no client traffic secret": _label("CLIENT_TRAFFIC_SECRET_0"),
    "no server handshake secret": _label("SERVER_HANDSHAKE_TRAFFIC_SECRET"),
    "no client handshake secret": _label("CLIENT_HANDSHAKE_TRAFFIC_SECRET"),
    "first connection missing": _one_connection(last=False),
    "last connection missing": _one_connection(last=True),
    "no early secret": _label("CLIENT_EARLY_TRAFFIC_SECRET"),
}


def mutated(rng: Random, lines: Lines) -> Lines:
    """The key log after one to four random changes."""
    lines = list(lines)
    for _ in range(rng.randint(1, 4)):
        if lines:
            rng.choice(_CHANGES)(rng, lines)
    return lines


def _delete(rng: Random, lines: Lines) -> None:
    del lines[rng.randrange(len(lines))]


def _delete_label(rng: Random, lines: Lines) -> None:
    label = rng.choice(lines).partition(" ")[0]
    lines[:] = [line for line in lines if not line.startswith(label + " ")]


def _flip_digit(rng: Random, lines: Lines) -> None:
    """Change one hexadecimal digit of the random or of the secret."""
    at = rng.randrange(len(lines))
    places = [number for number, letter in enumerate(lines[at]) if letter in "0123456789abcdef"]
    if places:
        place = rng.choice(places)
        digit = rng.choice([digit for digit in "0123456789abcdef" if digit != lines[at][place]])
        lines[at] = lines[at][:place] + digit + lines[at][place + 1 :]


def _cut_line(rng: Random, lines: Lines) -> None:
    at = rng.randrange(len(lines))
    lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]


def _cut_file(rng: Random, lines: Lines) -> None:
    del lines[rng.randrange(len(lines)) :]


def _swap_labels(rng: Random, lines: Lines) -> None:
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    first, second = lines[at].partition(" "), lines[other].partition(" ")
    lines[at], lines[other] = second[0] + first[1] + first[2], first[0] + second[1] + second[2]


def _comment_out(rng: Random, lines: Lines) -> None:
    at = rng.randrange(len(lines))
    lines[at] = "#" + lines[at]


def _wrong_one_first(rng: Random, lines: Lines) -> None:
    """Insert a line with the same label and session and a wrong secret before the right line. No secret is missing."""
    at = rng.randrange(len(lines))
    if match := _SECRET.fullmatch(lines[at]):
        lines.insert(at, f"{match[1]} {match[2]} {rng.randbytes(len(match[3]) // 2).hex()}")


def _upper_case(rng: Random, lines: Lines) -> None:
    at = rng.randrange(len(lines))
    label, _, rest = lines[at].partition(" ")
    lines[at] = f"{label} {rest.upper()}"


def _shuffle(rng: Random, lines: Lines) -> None:
    rng.shuffle(lines)


def _garbage(rng: Random, lines: Lines) -> None:
    lines.insert(rng.randrange(len(lines) + 1), rng.randbytes(40).decode("latin-1").replace("\n", " "))


_CHANGES: tuple[Callable[[Random, Lines], None], ...] = (
    _delete,
    _delete,
    _delete_label,
    _flip_digit,
    _cut_line,
    _cut_file,
    _swap_labels,
    _comment_out,
    _wrong_one_first,
    _upper_case,
    _shuffle,
    _garbage,
)

JOB = Job(server="s", client="c", case="x", iteration=1)
ROLES = ("client", "server")
_LABELS = {
    (0, "0rtt"): "CLIENT_EARLY_TRAFFIC_SECRET",
    (0, "handshake"): "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
    (1, "handshake"): "SERVER_HANDSHAKE_TRAFFIC_SECRET",
    (0, "1rtt"): "CLIENT_TRAFFIC_SECRET_0",
    (1, "1rtt"): "SERVER_TRAFFIC_SECRET_0",
}

_SEALED = frozenset(
    ("connectionmigration", "ecn", "keyupdate", "multiplexing", "rebind-addr", "rebind-port", "transfer", "zerortt")
)
"""Cases about the content of encrypted packets."""


@dataclass(frozen=True)
class Recorded:
    """A good recording, and the case that it passes."""

    path: str
    case: str
    record: CaseRecord


def recordings(catalog: Catalog) -> tuple[Recorded, ...]:
    """All good recordings."""
    plain = (
        Recorded(path, case, changed(catalog.cases[case].record(), {"file_sizes": sizes} if sizes else {}))
        for path, case, sizes in GOOD_ONES
    )
    impaired = (
        Recorded(good.path, good.case, changed(catalog.cases[good.case].record(), good.changes)) for good in GOOD
    )
    return (*plain, *impaired)


@cache
def _traces(path: str) -> tuple[Trace, Trace]:
    artifacts = Artifacts(RECORDINGS / path / "1")
    client, server = (
        decode_capture(capture, artifacts.key_logs) for capture in (artifacts.client_capture, artifacts.server_capture)
    )
    return client, server


@cache
def needed(path: str, may_miss: frozenset[str]) -> frozenset[tuple[str, str]]:
    """Label and client random of the secrets that open the recording's packets. Packets of the types `may_miss` are
    left out."""
    records = set()
    for trace in _traces(path):
        randoms = [random.hex() if random else "" for random in trace.connections["client_random"].to_pylist()]
        columns = (trace.packets[name].to_pylist() for name in ("connection", "sender", "type", "decrypted"))
        for connection, sender, kind, opened in set(zip(*columns, strict=True)):
            if opened and (sender, kind) in _LABELS and kind not in may_miss:
                records.add((_LABELS[sender, kind], randoms[connection]))
    return frozenset(records)


def originals(path: str) -> dict[str, Lines]:
    """The lines of a recording's key logs, by role."""
    logs = {role: RECORDINGS / path / "1" / role / "keys.log" for role in ROLES}
    return {role: log.read_text().splitlines() for role, log in logs.items() if log.is_file()}


def expected(catalog: Catalog, recorded: Recorded, logs: dict[str, Lines]) -> frozenset[Outcome]:
    """The outcomes that the judge may give with these key logs. Both are allowed when a key log has the right secret
    under a wrong name, because a packet that it opens is still proof.
    """
    right = {secret for lines in originals(recorded.path).values() for secret in secrets(lines)}
    left = {secret for lines in logs.values() for secret in secrets(lines)}
    named = {secret[:2] for secret in left & right}
    values = {secret[2] for secret in left}
    somewhere = {secret[:2] for secret in right if secret[2] in values}
    files = needed(recorded.path, catalog.cases[recorded.case].may_miss)
    if files <= named:
        return frozenset({Outcome.SUCCEEDED})
    every = needed(recorded.path, frozenset())
    if not every & somewhere:
        return frozenset({Outcome.ERROR if recorded.case in _SEALED else Outcome.SUCCEEDED})
    if not every & named:
        return frozenset({Outcome.ERROR, Outcome.SUCCEEDED})
    return frozenset({Outcome.ERROR} if files - somewhere else {Outcome.ERROR, Outcome.SUCCEEDED})


def judged(catalog: Catalog, recorded: Recorded, logs: dict[str, Lines], folder: Path) -> Result:
    """The judge's verdict with these key logs."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(RECORDINGS / recorded.path / "1", folder)
    for role, lines in logs.items():
        (folder / role / "keys.log").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return analyse(JOB, Artifacts(folder), catalog.cases[recorded.case], recorded.record)


@dataclass(frozen=True)
class Wrong:
    """A verdict that the evidence does not support."""

    recorded: Recorded
    number: int
    expected: frozenset[Outcome]
    result: Result

    def __str__(self) -> str:
        codes = ", ".join(finding.code for finding in self.result.findings)
        outcomes = " or ".join(sorted(self.expected))
        return f"#{self.number} {self.recorded.path}: {self.result.outcome} ({codes}), expected {outcomes}"


def campaign(
    catalog: Catalog,
    *,
    seed: str,
    inputs: range,
    folder: Path,
    tell: Callable[[frozenset[Outcome]], None] = lambda _: None,
) -> list[Wrong]:
    """Judge random recordings with mutated key logs; `tell` gets the expected outcomes of each."""
    every, wrong = recordings(catalog), []
    for number in inputs:
        rng = Random(f"{seed}/{number}")
        recorded = rng.choice(every)
        logs = {role: list(lines) for role, lines in originals(recorded.path).items()}
        # In real jobs both logs are mostly equal. If only one log is changed, the other log still has all secrets.
        if rng.random() < 0.5:
            text = next(iter(logs.values()))
            state = rng.getrandbits(64)
            logs = {role: mutated(Random(state), text) for role in logs}
        else:
            logs = {role: mutated(rng, lines) for role, lines in logs.items()}
        outcomes = expected(catalog, recorded, logs)
        result = judged(catalog, recorded, logs, folder)
        tell(outcomes)
        if result.outcome not in outcomes:
            wrong.append(Wrong(recorded, number, outcomes, result))
    return wrong
