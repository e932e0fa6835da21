"""Watches a container from before its start to its end: output, exit, floods. A lane waits until its bell
rings."""

import threading
import time
from collections.abc import Callable

from runner.engine.containers import Engine, State
from runner.engine.output import Output
from runner.engine.stream import Stream
from runner.errors import LaneError

STOPPED = "stopped"  # code of the LaneError for a job that was running when the run was stopped
_LOOK = 0.25  # seconds between checks of `_stop` while the bell doesn't ring


class Bell:
    """Rings when something changed in a lane. `stop` is set when the whole run ends."""

    def __init__(self, stop: threading.Event) -> None:
        self._changed = threading.Condition()
        self._stop = stop

    def ring(self) -> None:
        """Wake all threads that wait."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, until: Callable[[], bool], *, timeout: float) -> bool:
        """Wait until `until()` is true. False after `timeout` seconds. Raises LaneError `stopped` when the run ends."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not until():
                if self._stop.is_set():
                    raise LaneError(STOPPED, "The run was stopped while this job ran.")
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, _LOOK))
        return True


class Watched:
    """A container that is watched until its end. Its fields may be read at any time."""

    def __init__(self, engine: Engine, container: str, bell: Bell) -> None:
        self.container = container
        self.flooded = False  # killed because it printed more than its limit
        self.final: State | None = None
        self._engine = engine
        self._bell = bell
        self._started = False
        self._failure: LaneError | None = None

    @property
    def ended(self) -> bool:
        """True when the container was started and has ended. Raises LaneError when the engine could not report this."""
        if self._failure is not None:
            raise self._failure
        return self.final is not None

    def start(self) -> None:
        """Start the container and watch it. Raises LaneError when it can't be started."""
        self._engine.start(self.container)
        self._started = True
        threading.Thread(target=self._watch, name="container", daemon=True).start()

    def _watch(self) -> None:
        try:
            self._read()
            self._engine.wait(self.container)
            self.final = self._engine.state(self.container)
        except LaneError as error:
            self._failure = error
        self._bell.ring()

    def _read(self) -> None:
        """Read the container's output until the end of the stream."""

    def kill(self) -> None:
        """Kill the container and wait for its end."""
        if self._started and not self.ended:
            self._engine.signal(self.container, "SIGKILL")
            self._bell.wait(lambda: self.ended, timeout=10)

    def terminate(self, *, grace: float, hurry: Callable[[], bool] = lambda: False) -> bool:
        """Send SIGTERM, and SIGKILL after `grace` seconds or as soon as `hurry()` is true. Returns True when the
        container was still running."""
        if not self._started or self.ended or not self._engine.signal(self.container, "SIGTERM"):
            return False
        self._bell.wait(lambda: self.ended or hurry(), timeout=grace)
        if not self.ended:
            self.kill()
        return True


class Supervised(Watched):
    """A watched container whose output is kept and limited. `ended` becomes true after all output was read."""

    _has_stdin = False  # True: the container has a stdin to write to

    def __init__(self, engine: Engine, container: str, bell: Bell, *, output_limit: int) -> None:
        super().__init__(engine, container, bell)
        self._output_limit = output_limit
        self._output = Output()
        self._lock = threading.Lock()
        self._stream: Stream | None = None

    @property
    def printed(self) -> str:
        """The kept part of the container's output so far."""
        with self._lock:
            return self._output.text()

    def last_lines(self, count: int) -> str:
        """The last lines of the container's output so far."""
        with self._lock:
            return self._output.last_lines(count)

    def forget(self) -> None:
        """Forget the container's output so far."""
        with self._lock:
            self._output = Output()

    def start(self) -> None:
        self._stream = self._engine.follow(self.container, stdin=self._has_stdin)
        super().start()

    def _read(self) -> None:
        assert self._stream is not None, "start() comes first"
        for source, data in self._stream:
            self._take(source, data)

    def _take(self, source: int, data: bytes) -> None:  # noqa: ARG002 - stdout is 1, stderr is 2
        """Add the next output."""
        with self._lock:
            self._output.feed(data)
        if self._output.total > self._output_limit and not self.flooded:
            self.flooded = True
            # In another thread, because a kill returns only after the output has been read.
            threading.Thread(target=self._kill_flood, name="flood", daemon=True).start()
        self._bell.ring()

    def _kill_flood(self) -> None:
        try:
            self._engine.signal(self.container, "SIGKILL")
        except LaneError as error:
            self._failure = error
            self._bell.ring()
