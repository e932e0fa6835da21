"""Fetches published images and the Debian base image, and finds stacks whose image is missing."""

import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, BuildError, DockerException, ImageNotFound
from docker.utils import parse_repository_tag
from urllib3.exceptions import HTTPError

from runner.engine import engine
from runner.errors import BentpipeError, SetupError
from runner.images import images
from runner.images.images import Event, Held, ImageState
from runner.model.stack import Implementation
from runner.units import format_size

# Fetches published images, and finds stacks that can't run because their image is missing.

SILENCE_SECONDS = 60.0
DOCKER_HUB = "docker.io"

# The engine's errors when it can't reach a registry at all.
_AWAY = re.compile(r"dial tcp|no such host|connection refused|timeout|proxyconnect|unreachable|nothing for|EOF$")
_REQUEST = re.compile(r'^Get "[^"]*": ')  # the engine puts the request before the reason
_LAYER_DONE = ("Pull complete", "Already exists")


def absent(stacks: Iterable[Implementation]) -> dict[str, str]:
    """A sentence for each stack whose published image is missing, by name of the stack. Starts no engine. When no
    engine runs, every image counts as missing. Raises SilentEngineError."""
    published = [stack for stack in stacks if stack.build is None]
    try:
        client = engine.client() if published else None
    except engine.SilentEngineError:
        raise
    except SetupError:
        client = None
    missing = [stack for stack in published if client is None or images.held(client, stack.image) is None]
    return {stack.name: _fix(stack) for stack in missing}


def require(client: docker.DockerClient, stacks: Iterable[Implementation]) -> dict[str, Held]:
    """The published images of `stacks`, by name. Raises SetupError for an image that is missing or can't run here."""
    published = {}
    for stack in stacks:
        if stack.build is None:
            image = images.held(client, stack.image)
            if image is None:
                raise SetupError(_fix(stack))
            if sentence := _other_machine(client, stack.image, image):
                raise SetupError(sentence)
            published[stack.name] = image
    return published


def pull(
    client: docker.DockerClient,
    stacks: Sequence[Implementation],
    *,
    report: Callable[[Event], None],
    parallel: int = 2,
    silence: float = SILENCE_SECONDS,
) -> None:
    """Fetch the newest images of `stacks`, `parallel` images at the same time. `silence`: seconds for which a registry
    may send nothing. Raises SetupError with a sentence for each failed image, and with one sentence for each registry
    that can't be reached. Fetched images and older images of the same name are not removed.
    """
    names: dict[str, list[str]] = {}
    for stack in stacks:
        names.setdefault(stack.image, []).append(stack.name)
    failed: dict[str, str] = {}
    away: dict[str, str] = {}  # registry → reason; its other images are not tried
    waiting = deque(names)

    def work() -> None:
        while True:
            try:
                tag = waiting.popleft()
            except IndexError:
                return
            host = registry(tag)
            if host in away:
                failed[tag] = away[host]
            elif reason := _attempt(client, tag, report, silence):
                failed[tag] = reason
                report(Event(tag=tag, state=ImageState.FAILED))
                if _AWAY.search(reason):
                    away[host] = reason

    workers = [threading.Thread(target=work, daemon=True) for _ in range(parallel)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        raise SetupError(_sentences(failed, away, names))


def registry(tag: str) -> str:
    """The host of the registry that a tag names; Docker Hub for a tag without a registry."""
    first, slash, _ = tag.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else DOCKER_HUB


def _fix(stack: Implementation) -> str:
    note = f" {stack.note}" if stack.withdrawn else ""
    return f"The image of {stack.name} ({stack.image}) is not pulled: run `./bentpipe build --pull {stack.name}`.{note}"


def _sentences(failed: Mapping[str, str], away: Mapping[str, str], names: Mapping[str, list[str]]) -> str:
    sentences = []
    for host, reason in away.items():
        lost = [name for tag in failed if registry(tag) == host for name in names[tag]]
        sentences.append(f"The registry {host} can't be reached ({reason}); not pulled: {', '.join(lost)}.")
    sentences += [f"{', '.join(names[tag])}: {why}" for tag, why in failed.items() if registry(tag) not in away]
    return "\n".join(sentences)


def _attempt(client: docker.DockerClient, tag: str, report: Callable[[Event], None], silence: float) -> str:
    """`_pull_image`, with the reason also when the engine fails. Images of this project are never pulled: their names
    could belong to anybody in a registry."""
    if tag.startswith(images.OWN_PREFIX):
        return f"the image {tag} is built by bentpipe, never pulled: run `./bentpipe build`."
    try:
        return _pull_image(client, tag, report, silence)
    except (BentpipeError, DockerException, OSError) as error:
        return f"the image {tag} can't be pulled: {error}"


def _pull_image(client: docker.DockerClient, tag: str, report: Callable[[Event], None], silence: float) -> str:
    """Pull an image. Returns the reason of a failure; empty after a success."""
    before = images.held(client, tag)
    repository, name = parse_repository_tag(tag)
    report(Event(tag=tag, state=ImageState.WORKING))
    layers: dict[str, bool] = {}
    loaded: dict[str, tuple[int, int]] = {}
    for event in _events(client, repository, name or "latest", silence):
        if "error" in event:
            reason = _REQUEST.sub("", " ".join(str(event["error"]).split())).rstrip(".")
            return reason if _AWAY.search(reason) else f"the image {tag} can't be pulled: {reason}."
        layer, status, detail = event.get("id", ""), event.get("status", ""), event.get("progressDetail") or {}
        if status == "Pulling fs layer" or status in _LAYER_DONE:
            layers[layer] = status in _LAYER_DONE
        if status == "Downloading" and "total" in detail:
            loaded[layer] = (int(detail.get("current", 0)), int(detail["total"]))
        report(_progress(tag, layers, loaded))
    image = images.held(client, tag)
    if image is None:
        return f"the image {tag} isn't in the engine after it was pulled: look at the space left on its disk."
    if sentence := _other_machine(client, tag, image):
        if before is not None and before.id != image.id:
            client.api.tag(before.id, repository, name or "latest")
        elif before is None:
            client.images.remove(tag)
        return sentence
    same = before is not None and before.id == image.id
    report(Event(tag=tag, state=ImageState.CURRENT if same else ImageState.PULLED))
    return ""


def _progress(tag: str, layers: Mapping[str, bool], loaded: Mapping[str, tuple[int, int]]) -> Event:
    current, total = (sum(part) for part in zip(*loaded.values(), strict=True)) if loaded else (0, 0)
    text = f"{format_size(current)} of {format_size(total)}" if total else ""
    return Event(tag=tag, state=ImageState.WORKING, step=sum(layers.values()), steps=len(layers), text=text)


def _events(client: docker.DockerClient, repository: str, name: str, silence: float) -> Iterator[dict[str, Any]]:
    """The engine's events during a pull, with an `error` at the end when the pull fails.

    The engine has no time limit for a pull. So a thread reads its events; when no events come, the thread is abandoned.
    """
    heard: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def listen() -> None:
        try:
            for event in client.api.pull(repository, tag=name, stream=True, decode=True):
                heard.put(event)
        except (BentpipeError, DockerException, HTTPError, OSError) as error:
            heard.put({"error": getattr(error, "explanation", None) or error})
        heard.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            event = heard.get(timeout=silence)
        except queue.Empty:
            yield {"error": f"it sent nothing for {silence:g} s"}
            return
        if event is None:
            return
        yield event


def _other_machine(client: docker.DockerClient, tag: str, image: Held) -> str:
    """The sentence for an image that the engine's machine can't run; empty when it can run the image."""
    version = client.version()
    here = f"{version['Os']}/{version['Arch']}"
    if image.machine == here:
        return ""
    return (
        f"The image {tag} is built for {image.machine} and this engine runs {here}: ask the image's project for an "
        f"image for {here}."
    )


# The Debian image that every image of this project starts from.
#
# A machine that reaches an image registry pulls this image. Any other machine makes it from Debian's packages.

TAG = "bentpipe/base:trixie"
HOST_CAS = Path("/usr/local/share/ca-certificates")

_SUITE = "trixie"
_PUBLISHED = "debian:trixie-slim"
_ROOT_FILE_SYSTEM = "bentpipe/debian:trixie"
_PULL_SILENCE_SECONDS = 20.0
_DEBOOTSTRAP_SECONDS = 900.0
_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
# Each program has its own variable for the same file. Without them, pip and cargo don't use the system's bundle.
_CA_VARIABLES = (
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "GIT_SSL_CAINFO",
)
_UNUSED_IN_CONTAINERS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt/lists", "var/cache/apt")

_DOCKERFILE = """\
FROM {parent}
COPY extra-cas/ /usr/local/share/ca-certificates/
RUN echo 'Dir::Cache {{ pkgcache ""; srcpkgcache ""; }};' > /etc/apt/apt.conf.d/no-package-cache \\
 && apt-get update \\
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates \\
 && update-ca-certificates \\
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*
ENV {variables}
"""


def obtain(
    client: docker.DockerClient, *, extra_cas: Path | None = HOST_CAS, progress: Callable[[str], None] = lambda _: None
) -> str:
    """Return the tag of the base image. When the engine doesn't have the image, make it.

    `extra_cas` is a folder with `*.crt` files (PEM), which the image trusts in addition to Debian's; a missing folder
    counts as empty. `progress` is called with one sentence for each stage. Raises SetupError when the image can be
    neither pulled nor made.
    """
    try:
        if _has(client, TAG):
            return TAG
        _add_certificates(client, _parent(client, progress), extra_cas, progress)
    except (DockerException, OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"The base image {TAG} can't be made: {error}.") from error
    return TAG


def _has(client: docker.DockerClient, tag: str) -> bool:
    try:
        client.images.get(tag)
    except ImageNotFound:
        return False
    return True


def _parent(client: docker.DockerClient, progress: Callable[[str], None]) -> str:
    for tag in (_ROOT_FILE_SYSTEM, _PUBLISHED):
        if _has(client, tag):
            return tag
    progress(f"pulling {_PUBLISHED}")
    if _pull(client, _PUBLISHED):
        return _PUBLISHED
    _bootstrap(client, progress)
    return _ROOT_FILE_SYSTEM


def _pull(client: docker.DockerClient, tag: str) -> bool:
    """Pull `tag`; False when the registry refuses or sends nothing."""
    repository, name = parse_repository_tag(tag)
    events = _events(client, repository, name or "latest", _PULL_SILENCE_SECONDS)
    return not any("error" in event for event in events) and _has(client, tag)


def _bootstrap(client: docker.DockerClient, progress: Callable[[str], None]) -> None:
    """Import Debian's minimal root file system, made by debootstrap, as _ROOT_FILE_SYSTEM."""
    if os.geteuid() != 0:
        raise SetupError(
            f"{_PUBLISHED} can't be pulled and making it needs root: run as root, or load {_PUBLISHED} into the engine."
        )
    if shutil.which("debootstrap") is None:
        progress("installing debootstrap")
        _run(["apt-get", "update"])
        _run(["apt-get", "install", "-y", "--no-install-recommends", "debootstrap", "debian-archive-keyring"])
    with _temporary_root() as root:
        progress(f"making Debian {_SUITE} from its packages, about half a minute")
        _debootstrap(root)
        for name in _UNUSED_IN_CONTAINERS:
            for entry in (root / name).iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        progress(f"importing {_ROOT_FILE_SYSTEM}")
        _import(client, root)


@contextmanager
def _temporary_root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="bentpipe-base-"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        # A debootstrap that was killed leaves these mounted. The removal of the folder must not enter the mounts.
        for mount in ("proc", "sys"):
            if (folder / mount).is_mount():
                subprocess.run(["umount", "--lazy", folder / mount], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _debootstrap(root: Path) -> None:
    command = ["debootstrap", "--variant=minbase", _SUITE, str(root)]
    try:
        _run(command)
    except SetupError as error:
        mirror = _mirror_of_this_host()
        if mirror is None:
            raise
        shutil.rmtree(root)
        root.mkdir(mode=0o755)
        try:
            _run([*command, mirror])
        except SetupError:
            raise error from None


def _mirror_of_this_host() -> str | None:
    """The Debian archive from which this host's apt gets main packages; None when apt has no such archive."""
    if shutil.which("apt-get") is None:
        return None
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    uris = [line.split()[-1] for line in listing.splitlines() if line.startswith("Debian Debian ")]
    return uris[0] if uris else None


def _import(client: docker.DockerClient, root: Path) -> None:
    repository, tag = _ROOT_FILE_SYSTEM.split(":")
    with tempfile.NamedTemporaryFile(prefix="bentpipe-base-", suffix=".tar") as archive:
        subprocess.run(["tar", "--numeric-owner", "-C", root, "-c", "."], stdout=archive, check=True)
        client.api.import_image_from_file(archive.name, repository=repository, tag=tag, changes=['CMD ["bash"]'])
    if not _has(client, _ROOT_FILE_SYSTEM):
        raise SetupError(f"The engine didn't import {_ROOT_FILE_SYSTEM}: look at the space left on its disk.")


def _add_certificates(
    client: docker.DockerClient, parent: str, extra_cas: Path | None, progress: Callable[[str], None]
) -> None:
    progress(f"building {TAG}")
    variables = " ".join(f"{name}={_CA_BUNDLE}" for name in _CA_VARIABLES)
    with tempfile.TemporaryDirectory(prefix="bentpipe-base-") as context:
        (Path(context) / "Dockerfile").write_text(_DOCKERFILE.format(parent=parent, variables=variables))
        folder = Path(context) / "extra-cas"
        folder.mkdir()
        for certificate in sorted(extra_cas.glob("*.crt")) if extra_cas is not None else ():
            shutil.copy(certificate, folder)
        try:
            client.images.build(path=context, tag=TAG, rm=True, forcerm=True)
        except (BuildError, APIError) as error:
            raise SetupError(f"The base image {TAG} doesn't build: {error}.") from error


def _run(command: Sequence[str]) -> None:
    """Run a command to its end. When it fails, raises SetupError with the last line of its output."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            timeout=_DEBOOTSTRAP_SECONDS,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"`{' '.join(command)}` can't run: {error}.") from error
    if done.returncode != 0:
        last = done.stdout.strip().splitlines()[-1:] or ["no output"]
        raise SetupError(f"`{' '.join(command)}` failed with exit code {done.returncode}: {last[0]}")
