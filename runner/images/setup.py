"""Set-up: examines this host and its kernel, and builds or pulls what is missing."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import docker
from rich.console import Console
from rich.prompt import Confirm

from runner.engine import engine
from runner.engine.containers import may_bound
from runner.engine.engine import SocketState
from runner.errors import BentpipeError, SetupError
from runner.images import images, pulling
from runner.images.images import PARALLEL, BuildDisplay, BuildHistory, Event, ImageState, build
from runner.images.pulling import HOST_CAS, SavedImages, obtain
from runner.model.run import Check, Run
from runner.model.stack import Implementation
from runner.paths import HOME, ROOT
from runner.units import format_size

# Tries the kernel features that lanes need, in a temporary network namespace.

_TRIAL = Path(__file__).with_name("kernel_trial.py")
_TRIAL_SECONDS = 20.0
_FIXES = {
    "veth": "Run `sudo modprobe veth`, or boot a kernel with CONFIG_VETH: lanes are wired with veth pairs.",
    "packet sockets": "Boot a kernel with CONFIG_PACKET: the simulator and the captures need AF_PACKET.",
    "IPv6": "Boot without ipv6.disable=1: the endpoint contract gives every endpoint an IPv6 address.",
}


def examine_kernel() -> list[Check]:
    """Try veth, packet sockets and IPv6. Without root, this runs in a user namespace, if the host allows it."""
    if shutil.which("unshare") is None:
        fix = "Run `sudo apt-get install util-linux`."
        return [Check(name="network namespaces", ok=False, what="there is no unshare command", fix=fix)]
    if shutil.which("ip") is None:
        return [Check(name="kernel", ok=True, what="not tried: there is no ip command (package iproute2)")]
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    try:
        done = subprocess.run(
            ["unshare", *user, "--net", sys.executable, "-I", _TRIAL],
            capture_output=True,
            text=True,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        late = f"not known: this host is so busy that the trial did not end within {_TRIAL_SECONDS:.0f} s"
        return [Check(name="kernel", ok=True, what=late)]
    if done.returncode != 0 and user:
        return [Check(name="kernel", ok=True, what="not tried: this user may not make namespaces, root may")]
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        fix = "Run as root on the host itself, or in a container that may make namespaces (--privileged)."
        return [Check(name="network namespaces", ok=False, what=f"can't be made ({reason[0]})", fix=fix)]
    failures: dict[str, str] = json.loads(done.stdout)
    return [Check(name=n, ok=not why, what=why or "works", fix=_FIXES[n]) for n, why in failures.items()]


# Checks what this host lacks to run jobs, and names the fixes: one line for each check. Changes nothing.

GIB = 1024**3
MACHINES = ("x86_64", "amd64")  # the images are built for this kind of machine and were tried on it
IMAGE_BYTES = GIB // 2  # bytes of an image with its build layers, on average
RUN_BYTES = GIB
MEMORY_BYTES = 2 * GIB
NAMES = 6  # most names in a line
_PATIENCE = 8.0  # the longest wait for the engine, in seconds
CORES = 2  # the endpoints share one core, so that the simulator is not late


def examine(implementations: Mapping[str, Implementation]) -> list[Check]:
    """All checks: this host, its engine, the images of `implementations`, and programs that only tests need."""
    checks = examine_host()
    client, check = _engine()
    checks.append(check)
    if client is not None:
        states = images.states(client, images.images_of(implementations.values()))
        checks += examine_engine(client, to_build=sum(state is not ImageState.CURRENT for state in states.values()))
        base = ImageState.CURRENT if images.held(client, pulling.TAG) else ImageState.MISSING
        checks += [own_images({pulling.TAG: base, **states}), _published_images(client, implementations.values())]
    return [*checks, _guests(client), _extra_cas(), _tshark()]


def examine_host() -> list[Check]:
    """Check Python, machine, kernel, memory, cores, and the disk of the logs."""
    version = platform.python_version()
    python = Check(name="Python", ok=sys.version_info >= (3, 11), what=version, fix="Install Python 3.11 or newer.")
    results = disk("disk of the results", HOME / "logs" if (HOME / "logs").is_dir() else HOME, RUN_BYTES)
    return [python, machine(platform.system(), platform.machine()), *examine_kernel(), _memory(), _cores(), results]


def machine(system: str, architecture: str) -> Check:
    """Check that images run on this kind of machine. `system`, `architecture`: from `uname -s` and `uname -m`."""
    return Check(
        name="machine",
        ok=system == "Linux" and architecture.lower() in MACHINES,
        what=f"{system} on {architecture}",
        fix=f"bentpipe runs only on Linux on {MACHINES[0]}: its images and most published images are built for this.",
    )


def examine_engine(client: docker.DockerClient, *, to_build: int) -> list[Check]:
    """Check the engine's storage and limits. `to_build`: the number of images for which the disk needs space."""
    info = client.info()
    driver = str(info.get("Driver", "unknown"))
    limits = bool(info.get("CpuCfsQuota")) and bool(info.get("MemoryLimit"))
    checks = [
        Check(
            name="storage driver",
            ok=driver in ("overlay2", "overlayfs"),
            what=driver,
            fix="Move the engine's data to a file system with overlay support (ext4, xfs): starts are slow here.",
            blocks=False,
        ),
        Check(
            name="CPU and memory limits",
            ok=limits,
            what="work" if limits else "the engine has no cgroup controller for them",
            fix="Mount the cgroup controllers cpu and memory: without them one endpoint can disturb all lanes.",
            blocks=False,
        ),
    ]
    folder = Path(str(info.get("DockerRootDir", "")))
    checks.append(root_file_systems(driver, folder, Path("/proc/self/mountinfo").read_text()))
    if folder.is_absolute() and folder.exists() and engine.socket_path() is not None:
        checks.append(disk("disk of the engine", folder, RUN_BYTES + to_build * IMAGE_BYTES))
    return checks


def root_file_systems(driver: str, folder: Path, mounts: str) -> Check:
    """Check how endpoints' roots are limited. `folder`: the engine's data; `mounts`: /proc/self/mountinfo."""
    inside = [line for line in mounts.splitlines() if folder.is_relative_to(line.split(" ")[4])]
    where = max(inside, key=lambda line: len(line.split(" ")[4]), default="")
    result, ok = (
        "have no quota: bentpipe watches their size, but an endpoint can fill the engine's disk for a moment",
        False,
    )
    if driver in ("btrfs", "zfs") or (" - xfs " in where and re.search(r"\bp(rj)?quota\b", where)):
        result, ok = "have quotas", True
    elif driver == "overlay2" and may_bound(folder):
        result, ok = "are in memory of limited size", True
    fix = "Put the engine's data on xfs with the mount option pquota, or run bentpipe as root on the engine's host."
    return Check(name="root file systems", ok=ok, what=result, fix=fix, blocks=False)


def disk(name: str, folder: Path, needed: int) -> Check:
    """Check that `needed` bytes are free on the disk of `folder`, and that this user may write there."""
    if not os.access(folder, os.W_OK):
        fix = "Make it writable for this user: another owner, other rights, or another mount."
        return Check(name=name, ok=False, what=f"{folder} can't be written", fix=fix)
    free = shutil.disk_usage(folder).free
    fix = f"Free {format_size(needed)} there (`docker image prune` removes unused images)."
    return Check(name=name, ok=free >= needed, what=f"{format_size(free)} free in {folder}", fix=fix)


def _memory() -> Check:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fix = f"Give the machine {format_size(MEMORY_BYTES)}: a lane holds two endpoints, their files and captures."
    return Check(name="memory", ok=size >= MEMORY_BYTES, what=format_size(size), fix=fix, blocks=False)


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0))
    fix = f"Give the machine {CORES} cores: a simulator that waits for the CPU makes every job `error: disturbed`."
    return Check(name="cores", ok=cores >= CORES, what=str(cores), fix=fix, blocks=False)


def _engine() -> tuple[docker.DockerClient | None, Check]:
    if not os.environ.get("DOCKER_HOST") and engine.socket_state(engine.SOCKET) is SocketState.SILENT:
        installed = "is installed and doesn't run" if engine.daemon() else "is not installed"
        fix = "Run `./bentpipe build` as root: it installs and starts what is missing."
        return None, Check(name="Docker Engine", ok=False, what=installed, fix=fix)
    try:
        client = engine.client(patience=_PATIENCE)
    except BentpipeError as error:
        what = "doesn't answer" if isinstance(error, engine.SilentEngineError) else "can't be used"
        return None, Check(name="Docker Engine", ok=False, what=what, fix=str(error))
    user = "root" if os.geteuid() == 0 else f"{engine.user()}, who may use it"
    return client, Check(name="Docker Engine", ok=True, what=f"{client.version()['Version']}, as {user}")


def own_images(states: Mapping[str, ImageState]) -> Check:
    """Check that the images that every run needs are up to date. A stack's is built when it is selected."""
    parts = [f"{sum(state is ImageState.CURRENT for state in states.values())} of {len(states)} up to date"]
    for state in (ImageState.STALE, ImageState.MISSING):
        tags = [tag.removeprefix(images.OWN_PREFIX) for tag, tag_state in states.items() if tag_state is state]
        if tags:
            more = "" if len(tags) <= NAMES else f" and {len(tags) - NAMES} more"
            parts.append(f"{state.value}: {', '.join(tags[:NAMES])}{more}")
    every_run_needs = {pulling.TAG, *(image.tag for image in images.images_of([]))}
    return Check(
        name="images of this project",
        ok=all(states.get(tag) is ImageState.CURRENT for tag in every_run_needs),
        what="; ".join(parts),
        fix="Run `./bentpipe build`.",
    )


def _guests(client: docker.DockerClient | None) -> Check:
    """Check whether the kernel of virtual time is built; otherwise `--clock virtual` builds it."""
    if client is None:
        description = "without an engine only `run --clock virtual --rootless`, with images from an archive"
        return Check(name="virtual time", ok=True, what=description)
    [(tag, folder)] = images.GUEST.items()
    state = images.states(client, [images.Image(tag=tag, context=ROOT / folder)])[tag]
    description = "its kernel is up to date"
    if state is not ImageState.CURRENT:
        description = f"its kernel is {state.value}; the first --clock virtual builds it, which takes minutes"
    return Check(name="virtual time", ok=True, what=description)


def _published_images(client: docker.DockerClient, stacks: Iterable[Implementation]) -> Check:
    published = [stack for stack in stacks if stack.build is None]
    here = [stack.name for stack in published if images.held(client, stack.image)]
    names = f": {', '.join(here)}" if here else ""
    fetch = "" if len(here) == len(published) else " (`./bentpipe build --pull` fetches them)"
    return Check(name="published images", ok=True, what=f"{len(here)} of {len(published)} pulled{names}{fetch}")


def _extra_cas() -> Check:
    number = len(list(pulling.HOST_CAS.glob("*.crt")))
    return Check(name="extra CAs", ok=True, what=f"{number} in {pulling.HOST_CAS}, for the base image")


def _tshark() -> Check:
    program = shutil.which("tshark")
    return Check(name="tshark", ok=True, what=program or "not installed; `./bentpipe packets` installs it when needed")


# Set-up of a new host: engine, base image, images, and the programs that tests need.

# Programs that tests use; their packages have the same names. Ubuntu has Chromium only as a snap, so tests with
# Chromium may be skipped there.
TEST_TOOLS = ("tshark", "chromium")


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Images of the stacks that can run now, by stack: ids (`sha256:…`) of all, digests of pulled ones."""

    ids: Mapping[str, str]
    digests: Mapping[str, str] = field(default_factory=dict)

    def recorded_in(self, run: Run) -> Run:
        """The run with the ids and digests of its images. The variants of a stack have the same image."""
        entries = {}
        for name, entry in run.implementations.items():
            base = entry.variant_of or name
            entries[name] = replace(entry, image_id=self.ids.get(base, ""), image_digest=self.digests.get(base, ""))
        return replace(run, implementations=entries)


def prepare(
    stacks: Sequence[Implementation],
    *,
    assume_yes: bool,
    extra_cas: Path | None,
    console: Console,
    guests: bool = False,
    saved: SavedImages | None = None,
) -> Ready:
    """Make this host able to run jobs of `stacks`; with `guests`, in virtual time. With the archives `saved`, it needs
    no engine: all images must be in them.

    `extra_cas`: a folder of `*.crt` files that the base image trusts, too; None: the folder HOST_CAS of this host. A
    person at the terminal must confirm installations, unless `assume_yes`. Raises SetupError with a sentence that names
    the missing part, UsageError for an image that no archive has.
    """
    if saved is not None:
        require([machine(platform.system(), platform.machine())])
        for needed in (images.SIMULATOR, *images.GUEST):
            saved.image_id(needed)
        return Ready(ids={stack.name: saved.image_id(stack.image) for stack in stacks})
    require(examine_host())
    client = connect(assume_yes=assume_yes, console=console)
    published = images.require_published(client, stacks)
    required = images.images_of(stacks, guests=guests)
    todo = [tag for tag, state in images.states(client, required).items() if state is not ImageState.CURRENT]
    require(examine_engine(client, to_build=len(todo)))
    obtain(client, extra_cas=extra_cas or HOST_CAS, progress=_line(console))
    history = BuildHistory()
    with BuildDisplay(console, todo=todo, builds=history.builds()) as display:

        def report(event: Event) -> None:
            history.add(event)
            display(event)

        ids = build(client, required, report=report, parallel=PARALLEL)
    built = {stack.name: ids[images.short(stack.image)] for stack in stacks if stack.build is not None}
    pulled = {name: image.id for name, image in published.items()}
    return Ready(ids=built | pulled, digests={name: image.digest for name, image in published.items()})


def connect(*, assume_yes: bool, console: Console) -> docker.DockerClient:
    """The engine of this host. When necessary, it is installed and started. Raises SetupError."""
    agree = consent(console, assume_yes)
    return engine.connect(progress=_line(console), consent=agree)


def pull(stacks: Sequence[Implementation], *, assume_yes: bool, console: Console) -> None:
    """Fetch the published images of `stacks`. Raises SetupError for those that fail; others are kept."""
    client = connect(assume_yes=assume_yes, console=console)
    tags = list(dict.fromkeys(stack.image for stack in stacks))
    with BuildDisplay(console, todo=tags, verb="pulling") as display:
        pulling.pull(client, stacks, report=display, parallel=PARALLEL)


def prepare_tests(*, assume_yes: bool, console: Console) -> None:
    """Install the programs that tests use. A failure is reported; the tests with this program are skipped."""
    for tool in TEST_TOOLS:
        try:
            require_tool(tool, purpose=f"Some tests need {tool}.", assume_yes=assume_yes, console=console)
        except SetupError as error:
            _line(console)(f"{error} Those tests are skipped.")


def require_tool(tool: str, *, purpose: str, assume_yes: bool, console: Console) -> None:
    """Install the program `tool` when it is missing; its package has the same name. `purpose`: a sentence. Raises
    SetupError."""
    if shutil.which(tool) is None:
        agree, progress = consent(console, assume_yes), _line(console)
        engine.install_packages([tool], consent=agree, progress=progress, purpose=purpose)


def require(checks: Sequence[Check]) -> None:
    """Raise SetupError for the first failed check without which no job can run."""
    for check in checks:
        if check.blocks and not check.ok:
            raise SetupError(f"{check.name}: {check.what}. {check.fix}")


def _line(console: Console) -> engine.Progress:
    return lambda sentence: console.print(sentence, soft_wrap=True, markup=False)


def consent(console: Console, assume_yes: bool) -> engine.Consent:
    """Asks the person at the terminal. Agrees when `assume_yes`, or when the standard input is no terminal."""
    if assume_yes or not sys.stdin.isatty():
        return lambda _: True
    return lambda question: Confirm.ask(question, console=console, default=True)
