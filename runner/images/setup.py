"""Set-up of a new host: engine, base image, images, and the programs that tests need."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import docker
from rich.console import Console
from rich.prompt import Confirm

from runner.engine import engine
from runner.errors import SetupError
from runner.images import base_image, building, doctor, images, pulling
from runner.images.display import PARALLEL, BuildDisplay
from runner.images.history import History
from runner.images.images import Event, State
from runner.model.check import Check
from runner.model.implementation import Implementation

# Programs that tests use; their packages have the same names. Ubuntu has Chromium only as a snap, so tests with
# Chromium may be skipped there.
TEST_TOOLS = ("tshark", "chromium")


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The images of the stacks that can run now, by name of the stack: ids (`sha256:…`) of all images, and digests of
    pulled images."""

    ids: dict[str, str]
    digests: dict[str, str]


def prepare(
    stacks: Sequence[Implementation],
    *,
    assume_yes: bool,
    extra_cas: Path | None,
    console: Console,
    guests: bool = False,
) -> Ready:
    """Make this host able to run jobs of `stacks`; with `guests`, in virtual time.

    `extra_cas`: a folder of `*.crt` files that the base image trusts, too; None: the folder HOST_CAS of this host. A
    person at the terminal must confirm installations, unless `assume_yes`. Raises SetupError with a sentence that names
    the missing part.
    """
    require(doctor.examine_host())
    client = connect(assume_yes=assume_yes, console=console)
    published = pulling.require(client, stacks)
    required = images.images_of(stacks, guests=guests)
    todo = [tag for tag, state in images.states(client, required).items() if state is not State.CURRENT]
    require(doctor.examine_engine(client, to_build=len(todo)))
    base_image.obtain(client, extra_cas=extra_cas or base_image.HOST_CAS, progress=_line(console))
    history = History()
    with BuildDisplay(console, todo=todo, builds=history.builds()) as display:

        def report(event: Event) -> None:
            history.add(event)
            display(event)

        ids = building.build(client, required, report=report, parallel=PARALLEL)
    built = {stack.name: ids[images.short(stack.image)] for stack in stacks if stack.build is not None}
    pulled = {name: image.id for name, image in published.items()}
    return Ready(ids=built | pulled, digests={name: image.digest for name, image in published.items()})


def connect(*, assume_yes: bool, console: Console) -> docker.DockerClient:
    """The engine of this host. When necessary, it is installed and started. Raises SetupError."""
    return engine.connect(progress=_line(console), consent=_consent(console, assume_yes))


def pull(stacks: Sequence[Implementation], *, assume_yes: bool, console: Console) -> None:
    """Fetch the published images of `stacks`. Raises SetupError for images that can't be fetched; other images
    are kept."""
    client = connect(assume_yes=assume_yes, console=console)
    tags = list(dict.fromkeys(stack.image for stack in stacks))
    with BuildDisplay(console, todo=tags, verb="pulling") as display:
        pulling.pull(client, stacks, report=display, parallel=PARALLEL)


def prepare_tests(*, assume_yes: bool, console: Console) -> None:
    """Install the programs that tests use. When an installation fails, this is reported, and the tests with this
    program are skipped."""
    for tool in TEST_TOOLS:
        if shutil.which(tool) is None:
            try:
                engine.install_packages(
                    [tool],
                    consent=_consent(console, assume_yes),
                    progress=_line(console),
                    purpose=f"Some tests need {tool}.",
                )
            except SetupError as error:
                _line(console)(f"{error} Those tests are skipped.")


def require(checks: Sequence[Check]) -> None:
    """Raise SetupError for the first failed check without which no job can run."""
    for check in checks:
        if check.blocks and not check.ok:
            raise SetupError(f"{check.name}: {check.what}. {check.fix}")


def _line(console: Console) -> engine.Progress:
    return lambda sentence: console.print(sentence, soft_wrap=True, markup=False)


def _consent(console: Console, assume_yes: bool) -> engine.Consent:
    if assume_yes or not sys.stdin.isatty():
        return lambda _: True
    return lambda question: Confirm.ask(question, console=console, default=True)
