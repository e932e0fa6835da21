"""Replays recorded jobs: all stages run without an engine, for tests and offline work."""

import shutil
import threading
import time
from pathlib import Path

from runner.errors import LaneError
from runner.model.result import Evidence
from runner.model.run import Job
from runner.places.lane_job import Deployment


class Replay(Deployment):
    """A deployment whose jobs are folders of an earlier run, `<recording>/<server>_<client>/<case>/<iteration>`.

    A job that was not recorded gets the recording of iteration 1 of its cell.
    """

    def __init__(self, recording: Path, *, seconds_per_job: float = 0.0) -> None:
        self._recording = recording
        self._seconds = seconds_per_job
        self._stop = threading.Event()

    def run(self, job: Job, folder: Path, *, attempt: int) -> Evidence | None:  # noqa: ARG002 - a recording has one attempt
        """Copy the recorded artifacts, with the evidence, to `folder`. Returns None. Raises LaneError `not-recorded`
        for a job without a recording."""
        source = self._recording / job.path
        if not source.is_dir():
            source = source.with_name("1")
        if not source.is_dir():
            raise LaneError("not-recorded", f"{self._recording} has no recording of {job}")
        shutil.copytree(source, folder, dirs_exist_ok=True)
        (folder / "result.json").unlink(missing_ok=True)
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline and not self._stop.wait(0.05):
            pass
        return None

    def stop(self) -> None:
        """End the running replays."""
        self._stop.set()
