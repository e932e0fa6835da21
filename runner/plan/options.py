"""The options of the commands that run jobs, as the user wrote them. Each option is declared once, as a field with its
help and its limits; `runner.cli` makes the command line of it. It imports nothing that is slow."""

# ruff: noqa: RUF009 - `option` makes a field

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.model.run import REAL, VIRTUAL, Pause, Retention
from runner.model.stack import Role
from runner.paths import IMPLEMENTATIONS, LINKS_FILE

AUTO = "auto"
"""The value of `--clock` that chooses a clock for each case."""
NO_CPU_MODEL, CALIBRATED, MEASURED = "none", "calibrated", "measured"
"""`measured`: CPU work is measured but takes no time; the calibration needs such runs."""
_SEEDS = (0, 2**31 - 1)


def option(*names: str, help: str, default: Any = None, **more: Any) -> Any:
    """A field that is an option of the command line. Without `names`, its name is the field's. `more`: `metavar`;
    `choices`; `limits`, the smallest and the largest number; `shown`, a text for the default or True; `alone`, the
    value of the option without a value; `file` or `folder`, for a path of this kind only; `exists`."""
    return field(default=default, metadata={"names": names, "help": help, **more})


def _many(*names: str, help: str, metavar: str | None = "NAME", **more: Any) -> Any:
    return option(*names, help=help, metavar=metavar, default=(), **more)


_LANES: dict[str, Any] = {
    "metavar": "N|auto",
    "shown": True,
    "help": "Number of jobs at the same time. auto: as many as this host can run undisturbed.",
}
_ROOTLESS: dict[str, Any] = {
    "metavar": "[ARCHIVE|FOLDER]",
    "alone": "images.tar",
    "help": "With --clock virtual: run without Docker and without root, with the images of an archive that "
    "`docker save` wrote, or of all *.tar in FOLDER. [without a value: images.tar]",
}


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of every command that runs jobs."""

    implementations: Path = IMPLEMENTATIONS
    lanes: str = option(default="1", **_LANES)
    yes: bool = option(
        "--yes", "-y", default=False, help="Ask nothing: install and start missing programs, begin a large run."
    )
    extra_cas: Path | None = option(
        folder=True,
        exists=True,
        help="Folder of *.crt files that the base image trusts in addition. [/usr/local/share/ca-certificates]",
    )


@dataclass(frozen=True, kw_only=True)
class MatrixOptions(JobOptions):
    """The options of `run`, `plan` and `demo`, with unresolved names; a text may have several, with commas."""

    servers: tuple[str, ...] = _many(
        "--server", help="Server stacks. Repeat the option or separate names by commas. [all]"
    )
    clients: tuple[str, ...] = _many("--client", help="Client stacks. [all]")
    cases: tuple[str, ...] = _many("--case", help="Test cases and measurements, by name or abbreviation. [all]")
    vias: tuple[str, ...] = _many("--via", help="Middleboxes between client and server: VPNs, PEPs. [none]")
    links: tuple[str, ...] = _many(
        "--link",
        metavar="NAME|rate=…",
        help="Links by name, emulated or real, or a link as text: rate=50M/5M,delay=300ms,loss=0.1%,queue=1bdp. "
        "[each case's own]",
    )
    sizes: tuple[str, ...] = _many(
        "--size",
        metavar="BYTES|all",
        help="Size of the file, for measurements that download one file. all: several sizes from 0.5 to 10 MB. "
        "[the case's own]",
    )
    losses: tuple[str, ...] = _many(
        "--loss",
        metavar="0…1|all",
        help="Packet loss in both directions of the satellite segment. all: 0, and 28 fractions from 1e-9 to 1. "
        "[the link's own]",
    )
    besides: tuple[str, ...] = _many(
        "--beside",
        metavar="FLOW",
        help="A second download through the same link: tcp-cubic, tcp-bbr, tcp-reno or a stack. [none]",
    )
    warm: bool = option(default=False, help="Do the download or the page load twice, and measure only the second one.")
    iterations: int | None = option(
        limits=(1, 1000),
        help="Iterations of each measurement and of each test case with random losses. [as declared, mostly 10]",
    )
    variants: tuple[str, ...] = _many(
        "--variant",
        metavar="STACK:NAME=VALUE,…",
        help="Add the stack with other settings (CCA, IW, ACK_FREQUENCY, CLIENT_PARAMS, SERVER_PARAMS) as one more "
        "row or column, or a middlebox with other settings. `list` shows the settings. IW=10/32 adds two variants.",
    )
    images: tuple[str, ...] = _many("--image", metavar="NAME=IMAGE", help="Use this local image for the stack NAME.")
    seed: int | None = option(limits=_SEEDS, help="Seed of links, files and order. [random, recorded in run.json]")
    shuffle: bool = option(default=False, help="Run the jobs in random order, drawn from the seed.")
    name: str | None = option(
        "--run", metavar="NAME|DIR", help="Name of the run to begin, resume or extend. [date and time]"
    )
    links_file: Path = option(
        "--links",
        default=LINKS_FILE,
        shown="links.json",
        file=True,
        help="File that describes real links and their hosts.",
    )
    retry: tuple[str, ...] = _many(
        metavar=None,
        choices=("failed", "error"),
        help="Run jobs with this outcome again. Repeat the option for both.",
    )
    pause: Pause | None = option(metavar="HH:MM-HH:MM", help="Start no job in these hours, such as 18:00-23:00.")
    timeout_scale: float = option(
        default=1.0, limits=(0.01, 100), shown=True, help="Multiply every time-out by this number."
    )
    keep_captures: str = option(
        default="median",
        choices=tuple(policy.value for policy in Retention),
        shown=True,
        help="Captures to keep. failed: of jobs that failed or ended with an error. median: in addition, of the median "
        "iteration of each measurement.",
    )
    reuse: str | None = option(
        metavar="NAME|DIR",
        help="Reuse the results of that run for cells whose images, case and link did not change.",
    )
    clock: str | None = option(
        choices=(REAL, VIRTUAL, AUTO),
        help="real: real time. virtual: each job runs in a small kernel whose clock jumps ahead while programs "
        "wait. auto: virtual for cases that mostly wait and on a busy host, real for cases that the CPU can limit. "
        "[existing run's or real]",
    )
    cpu_model: str | None = option(
        choices=(NO_CPU_MODEL, CALIBRATED, MEASURED),
        help="In virtual time, CPU work takes no time (none), takes the time that the calibration of this host found "
        "(calibrated), or takes no time but is measured (measured). [existing run's or none]",
    )
    on: str | None = option(
        metavar="tls://HOST:PORT", help="Run on this scheduler's workers (docs/workers.md). [this host]"
    )
    spread: str = option(
        default="any",
        choices=("any", "hosts", "pinned"),
        shown=True,
        help="Workers for the iterations of a matrix cell: any, different hosts, or the same host.",
    )
    store: str = option(default="", metavar="URL", help="Folder that workers and runner share, for their archives.")
    rootless: Path | None = option(**_ROOTLESS)
    strict: bool = option(
        default=False,
        help="Exit with 1 when a job failed or an endpoint broke a MUST of an RFC (§), with 3 when a job ended with an "
        "error.",
    )
    markdown: bool = option("--markdown", "-m", default=False, help="Print the matrix at the end as Markdown.")
    repeat_runs: int | None = option(
        limits=(1, 100),
        metavar="N",
        help="Make N runs, NAME-1 to NAME-N. `compare` learns from them how much runs of the same images differ.",
    )
    repeat_check: bool = option(
        default=False,
        help="In virtual time: run every job again with the same seed, as run NAME-again, and show the first different "
        "packets. Exit with 1 when packets differ.",
    )

    @property
    def selects(self) -> bool:
        """True when the options extend the stored run by a selection; `--variant` only adds rows or columns."""
        axes = (self.servers, self.clients, self.vias, self.cases, self.links, self.sizes, self.losses, self.besides)
        return any(axes) or self.warm or self.iterations is not None


SELECTION = (
    *("servers", "clients", "cases", "vias", "links", "sizes", "losses", "besides", "warm", "iterations"),
    *("variants", "images", "seed", "shuffle", "links_file", "clock", "name", "retry", "lanes"),
)
"""The options of `plan`, which runs nothing."""


@dataclass(frozen=True, kw_only=True)
class StackOptions(JobOptions):
    """The options of commands about one stack: `check` and `ci`. Without `peers` and `cases`: the peers that this
    repository builds; all test cases, goodput and sat."""

    lanes: str = option(default="auto", **_LANES)
    name: str | None = option(help="Name of the stack. [from the image's name]")
    peers: tuple[str, ...] = ()
    cases: tuple[str, ...] = _many("--case", help="Cases to run. [all test cases, goodput, sat]")
    clock: str = REAL
    run: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckOptions(StackOptions):
    """The options of `check`. Either `image`, or at least one command of a local build."""

    image: str | None = None
    client: str | None = option(metavar="COMMAND", help="Instead of IMAGE: command of this host that runs a client.")
    server: str | None = option(metavar="COMMAND", help="Instead of IMAGE: command of this host that runs a server.")
    peers: tuple[str, ...] = _many(
        "--peer",
        help="Stacks to run against; each case takes the first two that can run it. [quic-go,quinn,aioquic]",
    )
    hostile: bool = option(
        default=False,
        help="Only meet the hostile peer, which breaks one rule at a time (docs/hostile.md); --case names flights.",
    )
    run: str | None = option(metavar="DIR", help="Folder of the report and its evidence. [logs/checks/NAME-TIME]")
    clock: str = option(default=REAL, choices=(REAL, VIRTUAL), shown=True, help="As in `run`.")
    strict: bool = option(default=False, help="Exit with 1 also when the image broke a MUST of an RFC (§).")

    @property
    def commands(self) -> dict[Role, str]:
        """The commands of a local build, by role."""
        return {role: command for role in Role if (command := getattr(self, role.value))}


@dataclass(frozen=True, kw_only=True)
class BuildOptions(StackOptions):
    """The options of `ci`. Both builds are images, or commits that `build` makes into images."""

    base: str = option(required=True, metavar="IMAGE|COMMIT", help="The build before the change.")
    head: str = option(required=True, metavar="IMAGE|COMMIT", help="The build with the change.")
    build: str | None = option(metavar="COMMAND", help="Command that builds a commit's image and tags it as $IMAGE.")
    repository: Path = option(
        default=Path(), folder=True, exists=True, shown="here", help="The git repository of --build."
    )
    roles: tuple[str, ...] = _many("--role", help="Roles of the stack: client, server. [both]")
    peers: tuple[str, ...] = _many("--peer", metavar="NAME|all", help="Stacks to run against. [quic-go,quinn,aioquic]")
    clock: str = option(default=VIRTUAL, choices=(VIRTUAL, REAL), shown=True, help="As in `run`.")
    rootless: Path | None = option(**_ROOTLESS)
    least: float = option(
        default=10.0,
        limits=(0, 1000),
        shown=True,
        metavar="PERCENT",
        help="Report only delivery times that changed by at least PERCENT.",
    )
    seed: int | None = option(limits=_SEEDS, help="Seed of both builds. [random, recorded]")
    run: str | None = option(metavar="DIR", help="Folder of the report and its evidence. [logs/ci/NAME-TIME]")
    url: str = option(
        default="",
        metavar="URL",
        help="URL at which the folder of --run will be published. Links of the report begin with it.",
    )
    summary: Path | None = option(file=True, help="Append the summary to this file, too.")
