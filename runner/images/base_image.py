"""The Debian image that every image of this project starts from.

A machine that reaches an image registry pulls this image. Any other machine makes it from Debian's packages.
"""

import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import docker
from docker.errors import APIError, BuildError, DockerException, ImageNotFound

from runner.errors import SetupError

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
    """Pull `tag`; False when the registry refuses or sends nothing.

    The engine has no time limit for a pull. So a thread reads its events; when no events come, the thread is abandoned.
    """
    events: queue.Queue[bool | None] = queue.Queue()

    def listen() -> None:
        try:
            for event in client.api.pull(tag, stream=True, decode=True):
                events.put(False if "error" in event else None)
            events.put(True)
        except (DockerException, OSError):
            events.put(False)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            outcome = events.get(timeout=_PULL_SILENCE_SECONDS)
        except queue.Empty:
            return False
        if outcome is not None:
            return outcome and _has(client, tag)


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
