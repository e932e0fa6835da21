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
    besides: tuple[str, ...] = ()  # flows beside, or none
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
    reuse: str | None = None  # a run whose results are taken over when nothing changed
    links_file: Path = LINKS
    images: tuple[str, ...] = ()  # NAME=IMAGE: a local image instead of the stack's own
    clock: str | None = None  # real, virtual or auto; None: the run's own, or real for a new run
    cpu_model: str | None = None  # none, calibrated or measured; None: the run's own, or none for a new run
    rootless: Path | None = None  # archives of images, for guests without Docker
    markdown: bool = False  # print the matrix as Markdown
    on: str | None = None  # the scheduler of workers; None: this host
    spread: str = "any"  # how the iterations of a cell are spread over workers
    store: str = ""  # URL of a folder that workers and runner share; empty: through the scheduler
    yes: bool = False
    extra_cas: Path | None = None

    @property
    def selects(self) -> bool:
        """True when the stored run is extended by the selection. `--variant` alone adds rows or columns to it."""
        axes = (self.servers, self.clients, self.vias, self.cases, self.links, self.sizes, self.losses, self.besides)
        return any(axes) or self.warm or self.iterations is not None

    def parsed_pause(self) -> Pause | None:
        """The hours in which no job starts. Raises UsageError."""
        return Pause.parse(self.pause) if self.pause else None
