"""How long images took to build on this host, for estimates of the time left."""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.images.images import Event, State
from runner.paths import ROOT

PATH = ROOT / "logs" / "builds.json"


@dataclass(frozen=True, kw_only=True)
class Build:
    """One successful build: its wall-clock seconds, and how many of its steps were reused."""

    seconds: float
    steps: int
    reused: int

    @property
    def full(self) -> bool:
        """True when most steps were done instead of reused: only then does its time predict the next build."""
        return 2 * self.reused <= self.steps


class History:
    """The build of each image on this host that reused the fewest steps, by tag. A file keeps these builds. Events may
    come from several threads."""

    def __init__(self, path: Path = PATH) -> None:
        self._path = path
        self._lock = threading.Lock()

    def builds(self) -> dict[str, Build]:
        """The recorded builds; none when the file is missing or broken."""
        try:
            return {tag: Build(**fields) for tag, fields in json.loads(self._path.read_text()).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def add(self, event: Event) -> None:
        """Record a build, unless it reused more steps than the recorded build: then its time would be too short for an
        estimate."""
        if event.state is not State.BUILT:
            return
        build = Build(seconds=round(event.seconds, 1), steps=event.steps, reused=event.reused)
        with self._lock:
            builds = self.builds()
            before = builds.get(event.tag)
            if before is not None and before.reused < build.reused:
                return
            builds[event.tag] = build
            self._save(builds)

    def _save(self, builds: Mapping[str, Build]) -> None:
        text = json.dumps({tag: asdict(build) for tag, build in sorted(builds.items())}, indent=1)
        new = self._path.with_suffix(".new")
        try:
            new.write_text(text + "\n")
            new.replace(self._path)
        except OSError:  # the checkout belongs to another user: then there are no estimates
            return


def time_left(
    builds: Mapping[str, Build], *, waiting: Iterable[str], working: Mapping[str, float], parallel: int
) -> float | None:
    """Seconds until everything is built; None when unknown. `working`: the seconds for which each image has been
    building.

    It is unknown while an image without a full build is left, or when a build takes longer than its earlier build.
    """
    waiting = list(waiting)
    if not all(tag in builds and builds[tag].full for tag in (*waiting, *working)):
        return None
    rest = [builds[tag].seconds - seconds for tag, seconds in working.items()]
    if any(seconds < 0 for seconds in rest):
        return None
    rest += [builds[tag].seconds for tag in waiting]
    return max([sum(rest) / parallel, *rest], default=0.0)
