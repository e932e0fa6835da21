"""The record of one night on disk, written after every stage: a night that dies goes on from there."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter

from runner.errors import UsageError
from runner.files.safe_files import read_regular
from runner.store import parse, to_json, write_atomically

_FOLDER = ".nights"


class State(StrEnum):
    """How a stage ended."""

    DONE = "done"
    STOPPED = "stopped"  # at the end of the night's time; the run can go on
    FAILED = "failed"
    LEFT_OUT = "left out"  # no time was left


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a night. `seconds` of wall-clock time; `message`: one sentence when it isn't done."""

    name: str
    state: State
    seconds: float
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class NightRecord:
    """One night. `stamp`: its local beginning, `YYYY-MM-DDTHHMM`, which is part of its runs' names."""

    stamp: str
    began_unix_s: float
    stages: tuple[Stage, ...] = ()
    ended_unix_s: float | None = None
    news: tuple[str, ...] = field(default=())  # what changed, in at most ten lines

    def has(self, stage: str) -> bool:
        """True when the stage needs no second attempt: it is done, or had its time."""
        return any(one.name == stage and one.state is not State.FAILED for one in self.stages)

    def with_stage(self, stage: Stage) -> "NightRecord":
        """The record with this stage in place of an earlier attempt of the same name."""
        others = tuple(one for one in self.stages if one.name != stage.name)
        return replace(self, stages=(*others, stage))


_RECORD: TypeAdapter[NightRecord] = TypeAdapter(NightRecord)


def night_folder(logs: Path, name: str) -> Path:
    """Where the records and logs of the night `name` are."""
    return logs / _FOLDER / name


def save_record(folder: Path, record: NightRecord) -> None:
    """Write the record; a kill at any instant leaves the old or the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{record.stamp}.json", to_json(record, _RECORD))


def load_records(folder: Path) -> list[NightRecord]:
    """All nights of this folder, the newest first. Raises UsageError for a record that can't be read."""
    records = []
    for path in folder.glob("*.json"):
        try:
            records.append(_RECORD.validate_python(parse(read_regular(path))))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} can't be read: move it away; its night is over or begins anew.") from error
    return sorted(records, key=lambda record: -record.began_unix_s)
