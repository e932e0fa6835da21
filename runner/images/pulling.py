"""Images from elsewhere: fetches published images and the Debian base image, brings images from this host's engine to
another one, and reads archives of `docker save`."""

import hashlib
import json
import os
import queue
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, TypeVar

import docker
from docker.errors import APIError, BuildError, DockerException, ImageNotFound
from docker.models.images import Image as EngineImage
from docker.utils import parse_repository_tag
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from runner.engine.engine import apt_install, run_program
from runner.errors import BentpipeError, LaneError, SetupError, UsageError
from runner.images.images import CONTRACT_FILES, OWN_PREFIX, Event, ImageFacts, ImageState, held, other_machine
from runner.model.stack import Implementation
from runner.store.collect import Blocks
from runner.units import format_size

# Fetches published images.

SILENCE_SECONDS = 60.0
DOCKER_HUB = "docker.io"

# The engine's errors when it can't reach a registry at all.
_AWAY = re.compile(r"dial tcp|no such host|connection refused|timeout|proxyconnect|unreachable|nothing for|EOF$")
_REQUEST = re.compile(r'^Get "[^"]*": ')  # the engine puts the request before the reason
_LAYER_DONE = ("Pull complete", "Already exists")


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
    that can't be reached. Fetched images and older images of the same name are not removed."""
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


def _sentences(failed: Mapping[str, str], away: Mapping[str, str], names: Mapping[str, list[str]]) -> str:
    sentences = []
    for host, reason in away.items():
        lost = [name for tag in failed if registry(tag) == host for name in names[tag]]
        sentences.append(f"The registry {host} can't be reached ({reason}); not pulled: {', '.join(lost)}.")
    sentences += [f"{', '.join(names[tag])}: {why}" for tag, why in failed.items() if registry(tag) not in away]
    return "\n".join(sentences)


def _attempt(client: docker.DockerClient, tag: str, report: Callable[[Event], None], silence: float) -> str:
    """`_pull_image`, also for a failing engine. Names of this project may belong to anybody: never pulled."""
    if tag.startswith(OWN_PREFIX):
        return f"the image {tag} is built by bentpipe, never pulled: run `./bentpipe build`."
    try:
        return _pull_image(client, tag, report, silence)
    except (BentpipeError, DockerException, OSError) as error:
        return f"the image {tag} can't be pulled: {error}"


def _pull_image(client: docker.DockerClient, tag: str, report: Callable[[Event], None], silence: float) -> str:
    """Pull an image. Returns the reason of a failure; empty after a success."""
    before = held(client, tag)
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
    image = held(client, tag)
    if image is None:
        return f"the image {tag} isn't in the engine after it was pulled: look at the space left on its disk."
    if sentence := other_machine(client, tag, image):
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
    """The engine's events during a pull, with an `error` at the end when the pull fails. The engine has no time limit
    for a pull. So a thread reads its events; when no events come, the thread is abandoned."""
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


# The Debian image that every image of this project starts from.
#
# A machine that reaches an image registry pulls this image. Any other machine makes it from Debian's packages.

TAG = "bentpipe/base:trixie"
HOST_CAS = Path("/usr/local/share/ca-certificates")

_SUITE = "trixie"
_PUBLISHED = "debian:trixie-slim"
_ROOT_FILE_SYSTEM = "bentpipe/debian:trixie"
_PULL_SILENCE_SECONDS = 20.0
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
    """Return the tag of the base image. When the engine doesn't have the image, make it. `extra_cas` is a folder with
    `*.crt` files (PEM), which the image trusts in addition to Debian's; a missing folder counts as empty. `progress` is
    called with one sentence for each stage. Raises SetupError when the image can be neither pulled nor made."""
    try:
        if held(client, TAG):
            return TAG
        _add_certificates(client, _parent(client, progress), extra_cas, progress)
    except (DockerException, OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"The base image {TAG} can't be made: {error}.") from error
    return TAG


def _parent(client: docker.DockerClient, progress: Callable[[str], None]) -> str:
    for tag in (_ROOT_FILE_SYSTEM, _PUBLISHED):
        if held(client, tag):
            return tag
    progress(f"pulling {_PUBLISHED}")
    events = _events(client, *_name(_PUBLISHED), _PULL_SILENCE_SECONDS)
    if not any("error" in event for event in events) and held(client, _PUBLISHED):
        return _PUBLISHED
    _bootstrap(client, progress)
    return _ROOT_FILE_SYSTEM


def _bootstrap(client: docker.DockerClient, progress: Callable[[str], None]) -> None:
    """Import Debian's minimal root file system, made by debootstrap, as _ROOT_FILE_SYSTEM."""
    if os.geteuid() != 0:
        raise SetupError(
            f"{_PUBLISHED} can't be pulled and making it needs root: run as root, or load {_PUBLISHED} into the engine."
        )
    if shutil.which("debootstrap") is None:
        progress("installing debootstrap")
        apt_install("debootstrap", "debian-archive-keyring")
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
    command = ("debootstrap", "--variant=minbase", _SUITE, str(root))
    try:
        run_program(*command)
    except SetupError as error:
        mirror = _mirror_of_this_host()
        if mirror is None:
            raise
        shutil.rmtree(root)
        root.mkdir(mode=0o755)
        try:
            run_program(*command, mirror)
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
    if not held(client, _ROOT_FILE_SYSTEM):
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


# Packs images as archives for another engine, without the layers that the other engine has. `docker load` accepts such
# an archive: it first looks for each layer in the engine, by the chain of this layer and all lower layers, and opens
# the layer's file only when the engine doesn't have it (moby, image/tarexport/load.go).

Answer = TypeVar("Answer")
Layers = tuple[str, ...]  # an image's layers, lowest first: the digest of each tar (OCI image spec: DiffID)
_BLOCK = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS
_COMPRESSION = 6  # the default level, because the connection is slower than the processor
_CLASSIC = "overlay2"  # Docker's own store of layers. containerd's store, "overlayfs", needs every layer in the archive


@dataclass(frozen=True, kw_only=True)
class WantedImage:
    """An image that another engine must have, as this host's engine has it. `digests`: its names in registries; empty:
    it was built here. `content`: as of `content`."""

    name: str
    id: str
    content: tuple[Any, ...]
    layers: Layers
    machine: str
    digests: tuple[str, ...] = ()

    @classmethod
    def of(cls, client: docker.DockerClient, name: str) -> "WantedImage":
        """The image `name` of this host's engine. Raises SetupError when it is missing."""
        try:
            image = client.images.get(name)
        except ImageNotFound as error:
            raise SetupError(f"{name} no longer exists on this host: run `./bentpipe build`.") from error
        return cls(
            name=name,
            id=image.id or "",
            content=content(image),
            layers=layers(image.attrs),
            machine=image.attrs["Architecture"],
            digests=tuple(image.attrs.get("RepoDigests") or ()),
        )


class Receiver(Protocol):
    """Another host that gets images."""

    @property
    def name(self) -> str:
        """The host's name."""

    def ask(self, question: Callable[..., Answer], *arguments: Any) -> Answer:
        """Call a function about its engine, whose client is the first argument of the function."""

    def load(self, image: WantedImage, archive: IO[bytes], size: int) -> None:
        """Load an archive of `size` bytes into its engine. Raises SetupError."""


def bring(
    local: docker.DockerClient,
    wanted: Iterable[WantedImage],
    receiver: Receiver,
    *,
    say: Callable[[str], None],
    may_pull: bool = True,
    sending: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> None:
    """Bring the images of the engine `local` to another host, which pulls them or gets the layers that it lacks.
    `sending`: the context in which an archive of some bytes is sent. Raises SetupError when an image is for another
    processor, when the disk has no space for its archive, and when the host can't load it."""
    images = receiver.ask(lacking, list({image.name: image for image in wanted}.values()))
    there: set[Layers] | None = None  # chains of its engine
    for number, image in enumerate(images, start=1):
        say(f"{image.name} is missing there, {number} of {len(images)}")
        if may_pull and image.digests and receiver.ask(pull_exactly, image):
            continue
        there = receiver.ask(chains) if there is None else there
        left_out = present(image.layers, there)
        with tempfile.TemporaryFile() as file:
            try:
                pack(local, image.name, file, left_out)
            except (DockerException, RequestException, OSError, tarfile.TarError) as error:
                raise SetupError(
                    f"{image.name} can't be packed for {receiver.name} ({error}): make space on this host, in "
                    "TMPDIR and in Docker's data folder, then run again."
                ) from error
            count, size = len([layer for layer in image.layers if layer not in left_out]), file.tell()
            say(f"  {count} of its {len(image.layers)} layers, {format_size(size)} compressed")
            with sending(size):
                receiver.load(image, file, size)
        there |= prefixes(image.layers)


# The engine that gets images: a client of it is on its own host, or on this one.


def lacking(client: docker.DockerClient, wanted: Iterable[WantedImage]) -> list[WantedImage]:
    """The images that an engine lacks with this content. Raises SetupError when they need another processor."""
    missing, there = [image for image in wanted if not has(client, image)], client.version()["Arch"]
    for image in missing:
        if image.machine != there:
            raise SetupError(
                f"{image.name} is made for {image.machine}, and the other host is {there}: use a host with the same "
                "kind of processor as this host."
            )
    return missing


def has(client: docker.DockerClient, image: WantedImage) -> bool:
    """True when an engine has the image. When the engine has it under another name, it is tagged."""
    with suppress(ImageNotFound):
        if content(client.images.get(image.name)) == image.content:
            return True
    with suppress(ImageNotFound):
        client.images.get(image.id).tag(*_name(image.name))
        return True
    return False


def pull_exactly(client: docker.DockerClient, image: WantedImage) -> bool:
    """Pull exactly this image from one of its registries. False when this fails."""
    for digest in image.digests:
        try:
            client.images.pull(digest)
        except (DockerException, OSError):
            continue
        if has(client, image):
            return True
    return False


def load(client: docker.DockerClient, image: WantedImage, archive: Iterable[bytes]) -> None:
    """Load an archive. Raises DockerException, and SetupError when the engine then has another content."""
    for step in client.api.load_image(archive):  # type: ignore[no-untyped-call]
        if why := step.get("error"):
            raise DockerException(why)
    if not has(client, image):
        raise SetupError(f"the engine there made another image of {image.name}: it is not compatible.")


def chains(client: docker.DockerClient) -> set[Layers]:
    """The chains of layers that an engine has, and that an archive for this engine may leave out."""
    if client.info()["Driver"] != _CLASSIC:
        return set()
    images = client.api.images(quiet=True)
    return {chain for image in images for chain in prefixes(layers(client.api.inspect_image(image)))}  # type: ignore[no-untyped-call]


def prefixes(of: Layers) -> set[Layers]:
    """Every chain of an image with these layers: its lowest layer, its two lowest layers, and so on."""
    return {of[:count] for count in range(1, len(of) + 1)}


def present(of: Layers, there: Collection[Layers]) -> frozenset[str]:
    """The layers that an archive may leave out for an engine that has the chains `there`."""
    known = max(count for count in range(len(of) + 1) if count == 0 or of[:count] in there)
    return frozenset(of[:known]) - frozenset(of[known:])


def pack(client: docker.DockerClient, image: str, into: IO[bytes], present: frozenset[str]) -> None:
    """Write a compressed archive of an image, without the layers whose digests are in `present`."""
    # The name must have a tag: without a tag it means all tags of the repository.
    _pack(client.api.get_image(_full(image), chunk_size=_BLOCK), into, present)


def _pack(archive: Iterable[bytes], into: IO[bytes], present: frozenset[str]) -> None:
    """Compress an archive, without the files whose digests are in `present`."""
    pack = zlib.compressobj(_COMPRESSION, zlib.DEFLATED, _GZIP)
    with tarfile.open(fileobj=Blocks(archive), mode="r|", bufsize=_BLOCK) as tar:
        for member in tar:
            before, state, digest = into.tell(), pack.copy(), hashlib.sha256()
            into.write(pack.compress(member.tobuf()))
            content = tar.extractfile(member) if member.isreg() else None
            while content is not None and (block := content.read(_BLOCK)):
                digest.update(block)
                into.write(pack.compress(block))
            if f"sha256:{digest.hexdigest()}" in present:
                pack = state
                into.seek(before)
                into.truncate()
            elif content is not None:
                into.write(pack.compress(bytes(-member.size % tarfile.BLOCKSIZE)))
    into.write(pack.compress(bytes(2 * tarfile.BLOCKSIZE)) + pack.flush())


def layers(inspected: dict[str, Any]) -> Layers:
    """The layers of an image, from the engine's description of the image."""
    return tuple(inspected["RootFS"].get("Layers") or ())


def content(image: EngineImage) -> tuple[Any, ...]:
    """The content that identifies an image: its layers, its environment and how it starts. The id is not sufficient:
    different kinds of engines give the same image different ids."""
    config = image.attrs["Config"] or {}
    start = [config.get(name) or None for name in ("Entrypoint", "Cmd", "WorkingDir", "User")]
    return layers(image.attrs), sorted(config.get("Env") or ()), start


def _full(image: str) -> str:
    return ":".join(_name(image))


def _name(image: str) -> tuple[str, str]:
    repository, colon, tag = image.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (image, "latest")


# Reads images from archives of `docker save`, for users who may not use an engine.

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"  # OCI image specification, "Whiteouts"
_LARGEST_IMAGE_JSON = 16 << 20  # bytes
_ARCHITECTURE = "amd64"
_PLATFORM = f"linux/{_ARCHITECTURE}"


@dataclass(frozen=True, kw_only=True)
class SavedImage:
    """An image in an archive, with `config` as `docker image inspect` has it. `layers`: members, lowest first."""

    archive: Path
    id: str  # `sha256:…`
    config: Mapping[str, Any]
    layers: tuple[str, ...]


class SavedImages:
    """The images of archives, by tag. A source of disks (`ImageDisks`)."""

    def __init__(self, images: Mapping[str, SavedImage], origin: Path) -> None:
        self._images = images
        self._origin = origin

    @classmethod
    def open(cls, origin: Path) -> "SavedImages":
        """`origin`: an archive, or a folder with `*.tar`. Raises UsageError unless `docker save` wrote them."""
        if not origin.exists():
            raise UsageError(
                f"--rootless: there is no {origin}; a user with Docker makes it with "
                f"`docker save -o {origin} IMAGE…` (docs/virtual-time.md)."
            )
        archives = sorted(origin.glob("*.tar")) if origin.is_dir() else [origin]
        if not archives:
            raise UsageError(f"--rootless {origin}: expected at least one archive (*.tar) of `docker save` in there.")
        images: dict[str, SavedImage] = {}
        for archive in archives:
            images |= _read(archive)
        return cls(images, origin)

    def __contains__(self, image: str) -> bool:
        """True when an archive has the image."""
        return _full(image) in self._images

    def missing(self, image: str) -> str:
        """A sentence that says how to get a missing image."""
        return (
            f"--rootless {self._origin}: no archive there has the image {image}; a user with Docker can write it "
            f"with `docker save -o FILE.tar {image}`."
        )

    def image_id(self, image: str) -> str:
        """The id of an image. Raises UsageError when no archive has it."""
        return self._find(image).id

    def image_config(self, image: str) -> Mapping[str, Any]:
        """The image's configuration: User, Env, Entrypoint, Cmd, WorkingDir."""
        return self._find(image).config

    def files(self, image: str) -> frozenset[str]:
        """The absolute paths of all files and folders in the image. Raises LaneError for a broken archive."""
        with self._opened(image) as (archive, layers):
            return frozenset(_shown(archive, layers))

    def facts(self, image: str) -> ImageFacts:
        """Facts about an image. Raises UsageError when no archive has it, LaneError for a broken archive."""
        return ImageFacts.of(
            self.image_config(image),
            image=image,
            image_id=self.image_id(image),
            platform=_PLATFORM,
            host_platform=_PLATFORM,
            files=self.files(image).intersection(CONTRACT_FILES),
        )

    def write_root(self, image: str, path: Path) -> None:
        """Write the image's root folder as a tar file. Raises LaneError for a broken archive."""
        with self._opened(image) as (archive, layers), tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as root:
            _merge(archive, layers, root)

    @contextmanager
    def _opened(self, image: str) -> Iterator[tuple[tarfile.TarFile, Sequence[str]]]:
        saved = self._find(image)
        try:
            with tarfile.open(saved.archive) as archive:
                yield archive, saved.layers
        except (tarfile.TarError, OSError, KeyError, EOFError) as error:
            raise LaneError("no-disk", f"{saved.archive} is broken: {error}") from error

    def _find(self, image: str) -> SavedImage:
        """An image by its name or its id."""
        for saved in self._images.values():
            if saved.id == image:
                return saved
        if image not in self:
            raise UsageError(self.missing(image))
        return self._images[_full(image)]


def _read(archive: Path) -> dict[str, SavedImage]:
    images: dict[str, SavedImage] = {}
    try:
        with tarfile.open(archive) as tar:
            for entry in json.loads(_content(tar, "manifest.json")):
                text = _content(tar, entry["Config"])
                about = json.loads(text)
                if about.get("architecture") != _ARCHITECTURE:
                    raise UsageError(
                        f"--rootless {archive}: {entry['RepoTags']} is for {about.get('architecture')}; guests run "
                        f"images for {_ARCHITECTURE}."
                    )
                image = SavedImage(
                    archive=archive,
                    id=f"sha256:{hashlib.sha256(text).hexdigest()}",
                    config=about.get("config") or {},
                    layers=tuple(entry["Layers"]),
                )
                images |= dict.fromkeys(entry.get("RepoTags") or (), image)
    except (tarfile.TarError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"--rootless {archive}: expected an archive that `docker save` wrote ({error}).") from None
    return images


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read(_LARGEST_IMAGE_JSON)


def _layer(archive: tarfile.TarFile, name: str) -> tarfile.TarFile:
    """A layer, which may be compressed."""
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    return tarfile.open(fileobj=file)


def _merge(archive: tarfile.TarFile, layers: Sequence[str], root: tarfile.TarFile) -> None:
    """Merge the layers into the tar file `root`."""
    shown = _shown(archive, layers)
    for number, name in enumerate(layers):
        with _layer(archive, name) as layer:
            for member in layer:
                if _is_of(shown, member.name, number):
                    _copy(layer, member, root, linked=_is_of(shown, member.linkname, number))


def _shown(archive: tarfile.TarFile, layers: Sequence[str]) -> dict[str, "_Entry"]:
    """The visible entries by path: files of an upper layer hide files of lower layers."""
    shown: dict[str, _Entry] = {}
    for number, name in enumerate(layers):
        with _layer(archive, name) as layer:
            added: dict[str, _Entry] = {}
            for member in layer:
                path = _path(member.name)
                folder, _, base = path.rpartition("/")
                if base == _OPAQUE:
                    _hide_below(shown, folder)
                elif base.startswith(_WHITEOUT):
                    _hide(shown, f"{folder}/{base.removeprefix(_WHITEOUT)}")
                else:
                    if not member.isdir():
                        _hide(shown, path)
                    added[path] = _Entry(layer=number, folder=member.isdir())
            shown |= added
    return shown


@dataclass(frozen=True, kw_only=True)
class _Entry:
    layer: int  # number of the layer whose entry is visible
    folder: bool


def _path(name: str) -> str:
    return str(PurePosixPath("/") / name)


def _is_of(shown: Mapping[str, _Entry], name: str, layer: int) -> bool:
    entry = shown.get(_path(name))
    return entry is not None and entry.layer == layer


def _hide(shown: dict[str, _Entry], path: str) -> None:
    """Remove the entries of lower layers at `path`."""
    entry = shown.pop(path, None)
    if entry is not None and entry.folder:
        _hide_below(shown, path)


def _hide_below(shown: dict[str, _Entry], folder: str) -> None:
    for name in [name for name in shown if name.startswith(f"{folder}/")]:
        del shown[name]


def _copy(layer: tarfile.TarFile, member: tarfile.TarInfo, root: tarfile.TarFile, *, linked: bool) -> None:
    """Add a member. `linked`: the target of its hard link is visible, too; if not, that content is added."""
    if member.islnk() and not linked:
        target = layer.getmember(member.linkname)
        root.addfile(target.replace(name=member.name), layer.extractfile(target))
    else:
        root.addfile(member, layer.extractfile(member) if member.isreg() else None)
