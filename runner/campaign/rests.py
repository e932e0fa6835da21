"""Reasons why lanes start no job now: no disk space, a pause of the user, quiet hours of a link."""

from dataclasses import dataclass, field
from pathlib import Path

from runner.campaign.space import lack_of_space
from runner.model.deployment import Deployment
from runner.model.pause import Pause

_ALL_LANES = -1


@dataclass(frozen=True)
class Rest:
    """The reason why a lane starts no job now, as a sentence; empty when the lane may start a job. `new`: the reason
    has changed."""

    reason: str
    new: bool


@dataclass
class Rests:
    """Decides whether lanes may start jobs. Not thread-safe."""

    folder: Path  # the run's folder: its file system must have space
    deployment: Deployment
    pause: Pause | None = None
    _reported: dict[int, str] = field(default_factory=dict)  # the last reason, by lane

    def look(self, lane: int) -> Rest:
        """The reason that is valid now for `lane`."""
        of_all = lack_of_space(self.folder) or self._paused()
        reasons = {_ALL_LANES: of_all, lane: "" if of_all else self.deployment.resting(lane)}
        new = any(reason and self._reported.get(key) != reason for key, reason in reasons.items())
        self._reported |= reasons
        return Rest(of_all or reasons[lane], new)

    def _paused(self) -> str:
        if self.pause is None or not self.pause.seconds_left():
            return ""
        return f"paused until {self.pause.end:%H:%M}"
