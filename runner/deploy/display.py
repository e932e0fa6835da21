"""How the building of images looks in a terminal: one line per image. Prints only through the console given."""

import threading
import time

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from runner.deploy.images import Event, State
from runner.units import format_duration


class BuildDisplay:
    """Shows build events: live lines on a terminal, else a line when an image begins and one when it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
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

    def __enter__(self) -> "BuildDisplay":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.state is State.WORKING:
                self._working(event)
            elif event.tag in self._started:
                self._ended(event)

    def _working(self, event: Event) -> None:
        if event.tag not in self._started:
            self._started[event.tag] = time.monotonic()
            self._tasks[event.tag] = self._progress.add_task(event.tag, total=None, step="", text="")
            if not self._console.is_terminal:
                self._console.print(f"building {event.tag}", soft_wrap=True)
        step = f"{event.step}/{event.steps}" if event.steps else ""
        text = escape(event.text[: max(0, self._console.width - 50)])
        self._progress.update(self._tasks[event.tag], step=step, text=text)

    def _ended(self, event: Event) -> None:
        self._progress.remove_task(self._tasks.pop(event.tag))
        took = format_duration(time.monotonic() - self._started.pop(event.tag))
        sign = "[green]✓[/green]" if event.state is State.BUILT else "[red]✗[/red]"
        self._console.print(f"{sign} {event.tag} {event.state.value}, {took}", soft_wrap=True)
