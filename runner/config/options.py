"""The options of `run` and `plan` as the user wrote them."""

from dataclasses import dataclass
from pathlib import Path

from runner.config.links import LINKS
from runner.model.pause import Pause
from runner.paths import IMPLEMENTATIONS


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """The options. Names are not resolved yet; a text may contain several names with commas between them."""

    implementations: Path = IMPLEMENTATIONS
    servers: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    vias: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()  # sizes in bytes, or `all`
    losses: tuple[str, ...] = ()  # losses as fractions, or `all`
    warm: bool = False
    besides: tuple[str, ...] = ()  # the flows that run beside the job's own flow; empty: none
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
    reuse: str | None = None  # a run whose results are taken over for jobs in which nothing changed
    links_file: Path = LINKS
    images: tuple[str, ...] = ()  # NAME=IMAGE: a local image instead of the stack's own image
    clock: str | None = None  # real, virtual or auto; None: the clock of the run, or real for a new run
    cpu_model: str | None = None  # none, calibrated or measured; None: the model of the run, or none for a new run
    rootless: Path | None = None  # archives of images, for guests without Docker
    markdown: bool = False  # print the matrix as Markdown
    on: str | None = None  # the scheduler of the workers; None: jobs run on this host
    spread: str = "any"  # how the iterations of a cell are distributed over workers
    store: str = ""  # URL of a folder that workers and runner share; empty: files are sent through the scheduler
    yes: bool = False
    extra_cas: Path | None = None

    @property
    def selects(self) -> bool:
        """True when the options extend the stored run by a selection. `--variant` does not count: it adds rows or
        columns to the stored run."""
        axes = (self.servers, self.clients, self.vias, self.cases, self.links, self.sizes, self.losses, self.besides)
        return any(axes) or self.warm or self.iterations is not None

    def parsed_pause(self) -> Pause | None:
        """The hours in which no job starts; None without `--pause`. Raises UsageError."""
        return Pause.parse(self.pause) if self.pause else None
