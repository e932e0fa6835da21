"""The record of one night: its stages, and the changes that it found."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

_RUN = "run "  # name of a stage that is a run


class State(StrEnum):
    """The state in which a stage ended."""

    DONE = "done"
    STOPPED = "stopped"  # stopped at the end of the night's time; the run can be resumed
    FAILED = "failed"
    LEFT_OUT = "left out"  # not begun, because no time was left


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a night. `seconds`: wall-clock time. `message`: one sentence when the stage isn't done."""

    name: str
    state: State
    seconds: float
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class NightRecord:
    """One night. `stamp`: the local time of its beginning, `YYYY-MM-DDTHHMM`, which is a part of its runs' names."""

    stamp: str
    began_unix_s: float
    stages: tuple[Stage, ...] = ()
    ended_unix_s: float | None = None
    news: tuple[str, ...] = field(default=())  # lines about the changes, at most ten lines for each run

    def has(self, stage: str) -> bool:
        """True when the stage needs no second attempt, because it is done or no time was left for it."""
        return any(done.name == stage and done.state is not State.FAILED for done in self.stages)

    def with_stage(self, stage: Stage) -> "NightRecord":
        """The record with this stage. It replaces an earlier attempt of the stage with the same name."""
        others = tuple(earlier for earlier in self.stages if earlier.name != stage.name)
        return replace(self, stages=(*others, stage))

    def runs(self, night: str) -> dict[str, str]:
        """The folder of each run with a stage, by the run's name in night.json. `night`: the night's name."""
        names = [stage.name.removeprefix(_RUN) for stage in self.stages if stage.name.startswith(_RUN)]
        return {name: run_name(night, name, self.stamp) for name in names}


def run_stage(run: str) -> str:
    """The name of a run's stage."""
    return f"{_RUN}{run}"


def run_name(night: str, run: str, stamp: str) -> str:
    """The folder of a run of the night that began at `stamp`."""
    return f"{night}-{run}-{stamp}"
