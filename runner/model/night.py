"""The record of one night: its stages and its news."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

_RUN = "run "  # name of a stage that is a run


class State(StrEnum):
    """How a stage ended."""

    DONE = "done"
    STOPPED = "stopped"  # ended with the night's time; the run can be resumed
    FAILED = "failed"
    LEFT_OUT = "left out"  # left out, because no time was left


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
    news: tuple[str, ...] = field(default=())  # the changes, in at most ten lines a run

    def has(self, stage: str) -> bool:
        """True when the stage needs no second attempt: it is done, or its time was over."""
        return any(done.name == stage and done.state is not State.FAILED for done in self.stages)

    def with_stage(self, stage: Stage) -> "NightRecord":
        """The record with this stage in place of an earlier attempt of the same name."""
        others = tuple(earlier for earlier in self.stages if earlier.name != stage.name)
        return replace(self, stages=(*others, stage))

    def runs(self, night: str) -> dict[str, str]:
        """The folder of each run that was begun, by the run's name in night.json. `night`: the night's name."""
        names = [stage.name.removeprefix(_RUN) for stage in self.stages if stage.name.startswith(_RUN)]
        return {name: run_name(night, name, self.stamp) for name in names}


def run_stage(run: str) -> str:
    """The name of the stage of a run."""
    return f"{_RUN}{run}"


def run_name(night: str, run: str, stamp: str) -> str:
    """The folder of a run of the night that began at `stamp`."""
    return f"{night}-{run}-{stamp}"
