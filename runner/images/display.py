"""Shows builds of images in a terminal: one line for each image and one line for all. Prints only through the
console."""

import threading
import time
from collections.abc import Collection, Mapping

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from runner.images.history import Build, time_left
from runner.images.images import Event, State
from runner.units import format_duration

PARALLEL = 2  # images built at the same time: one build uses the CPUs while the other waits, such as for the network

_ENDS = (State.BUILT, State.PULLED, State.FAILED, State.SKIPPED)


class BuildDisplay:
    """Shows build events: live lines on a terminal, otherwise a line when an image begins and a line when it is done.

    `todo`: the tags to be made. `builds`: earlier builds on this host, from which the time left is estimated.
    """

    def __init__(
        self,
        console: Console,
        *,
        todo: Collection[str],
        builds: Mapping[str, Build] | None = None,
        verb: str = "building",
    ) -> None:
        self._console = console
        self._verb = verb
        self._builds = builds or {}
        self._left = dict.fromkeys(todo)
        self._number = len(self._left)
        self._lock = threading.Lock()  # events come from the threads that build
        self._started: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[step]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", style="dim"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task(verb, total=None, step="", text="", visible=self._number > 1)

    def __enter__(self) -> "BuildDisplay":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.state is State.WORKING:
                self._working(event)
            elif event.state in _ENDS or event.tag in self._started:
                self._ended(event)
            self._progress.update(self._all, step=self._count(), text=self._time_left())

    def _working(self, event: Event) -> None:
        if event.tag not in self._started:
            self._started[event.tag] = time.monotonic()
            self._tasks[event.tag] = self._progress.add_task(event.tag, total=None, step="", text="")
            if not self._console.is_terminal:
                self._console.print(f"{self._verb} {event.tag}", soft_wrap=True)
        step = f"{event.step}/{event.steps}" if event.steps else ""
        text = escape(event.text[: max(0, self._console.width - 50)])
        self._progress.update(self._tasks[event.tag], step=step, text=text)

    def _ended(self, event: Event) -> None:
        self._left.pop(event.tag, None)
        took = ""
        if event.tag in self._started:
            self._progress.remove_task(self._tasks.pop(event.tag))
            took = f", {format_duration(time.monotonic() - self._started.pop(event.tag))}"
        good = event.state not in (State.FAILED, State.SKIPPED)
        sign = "[green]✓[/green]" if good else "[red]✗[/red]"
        rest = "; ".join(part for part in (self._count(), self._time_left()) if part) if self._number > 1 else ""
        about = f" [dim]({rest})[/dim]" if rest else ""
        self._console.print(f"{sign} {escape(event.tag)} {event.state.value}{took}{about}", soft_wrap=True)
        if event.state is State.FAILED and event.text:  # printed now, because the other images may take an hour
            self._console.print(f"  {escape(event.text.replace(chr(10), f'{chr(10)}  '))}", soft_wrap=True)

    def _count(self) -> str:
        return f"{self._number - len(self._left)} of {self._number}"

    def _time_left(self) -> str:
        """An estimate from full builds; a build that reuses layers takes less time."""
        now = time.monotonic()
        working = {tag: now - begin for tag, begin in self._started.items()}
        waiting = [tag for tag in self._left if tag not in working]
        seconds = time_left(self._builds, waiting=waiting, working=working, parallel=PARALLEL)
        return f"at most about {format_duration(seconds)} left" if seconds else ""
