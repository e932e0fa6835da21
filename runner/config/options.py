"""The options of `run` and `plan` as they were typed."""

from dataclasses import dataclass
from pathlib import Path

from runner.config.catalog import IMPLEMENTATIONS
from runner.config.links import LINKS
from runner.model.pause import Pause


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """Names are not resolved and may hold commas."""

    implementations: Path = IMPLEMENTATIONS
    servers: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    vias: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()  # `all`, or bytes
    losses: tuple[str, ...] = ()  # `all`, or fractions
    warm: bool = False
    iterations: int | None = None
    variants: tuple[str, ...] = ()
    seed: int | None = None
    shuffle: bool = False
    name: str | None = None
    lanes: str = "1"
    retry: tuple[str, ...] = ()
    pause: str | None = None
    timeout_scale: float = 1.0
    keep_captures: str = "median"
    links_file: Path = LINKS
    images: tuple[str, ...] = ()  # NAME=IMAGE: a local image in a stack's place
    clock: str | None = None  # real or virtual; None: that of the run, which begins as real
    markdown: bool = False  # print the matrix as Markdown
    yes: bool = False
    extra_cas: Path | None = None

    @property
    def selects(self) -> bool:
        """Whether a stored run is asked for more than it has; `--variant` alone asks for beside what it has."""
        axes = (self.servers, self.clients, self.vias, self.cases, self.links, self.sizes, self.losses)
        return any(axes) or self.warm or self.iterations is not None

    def parsed_pause(self) -> Pause | None:
        """The hours in which no job starts. Raises UsageError."""
        return Pause.parse(self.pause) if self.pause else None
