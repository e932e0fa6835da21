"""Where the images of a comparison are: in a Docker Engine, or in archives that `docker save` wrote."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from runner.campaign import clocks
from runner.campaign.stacks import load_saved, ready_without_engine
from runner.config.catalog import Catalog, load_catalog
from runner.engine import engine
from runner.errors import UsageError
from runner.guests.saved_images import SavedImages
from runner.images.image_facts import CONTRACT_FILES, URL_LABELS, VERSION_LABEL, ImageFacts, image_facts
from runner.images.images import held
from runner.images.setup import Ready, prepare
from runner.model.implementation import Implementation

_PLATFORM = "linux/amd64"  # `SavedImages` accepts no other platform


class ImageSource(ABC):
    """A place where images are found by name."""

    only_virtual: bool
    """True when jobs with these images can run only in guests."""
    saved: SavedImages | None
    """The archives; None when the images are in an engine."""

    @abstractmethod
    def catalog(self, implementations: Path) -> Catalog:
        """The catalogue, for peers whose images are here or can be built."""

    @abstractmethod
    def has(self, image: str) -> bool:
        """True when the image is here."""

    @abstractmethod
    def build_environment(self, image: str) -> Mapping[str, str]:
        """The environment variables besides IMAGE that a build command needs, so that its image is found here."""

    @abstractmethod
    def facts(self, image: str) -> ImageFacts:
        """Facts about an image. Raises UsageError when it is not here."""

    @abstractmethod
    def ready(
        self,
        stacks: Sequence[Implementation],
        clock: str,
        *,
        assume_yes: bool,
        extra_cas: Path | None,
        console: Console,
    ) -> Ready:
        """Make everything ready for jobs of `stacks`. Raises SetupError."""


class EngineImages(ImageSource):
    """Images of this host's engine. The engine pulls missing images."""

    only_virtual = False
    saved = None

    def catalog(self, implementations: Path) -> Catalog:
        return load_catalog(implementations)

    def has(self, image: str) -> bool:
        return held(engine.connect(), image) is not None

    def build_environment(self, image: str) -> Mapping[str, str]:  # noqa: ARG002 - the engine finds images by name
        return {}

    def facts(self, image: str) -> ImageFacts:
        return image_facts(engine.connect(), image)

    def ready(
        self,
        stacks: Sequence[Implementation],
        clock: str,
        *,
        assume_yes: bool,
        extra_cas: Path | None,
        console: Console,
    ) -> Ready:
        guests = clock != clocks.REAL
        return prepare(stacks, assume_yes=assume_yes, extra_cas=extra_cas, console=console, guests=guests)


class ArchivedImages(ImageSource):
    """Images in archives, for users who may not use an engine."""

    only_virtual = True

    def __init__(self, origin: Path) -> None:
        """`origin`: an archive, or a folder with `*.tar`. Raises UsageError for a file of another program."""
        self._origin = origin
        self.saved: SavedImages = SavedImages.open(origin)

    def catalog(self, implementations: Path) -> Catalog:
        return load_saved(implementations, self.saved)

    def has(self, image: str) -> bool:
        self.saved = SavedImages.open(self._origin)
        return image in self.saved

    def build_environment(self, image: str) -> Mapping[str, str]:
        if not self._origin.is_dir():
            raise UsageError(
                f"--rootless {self._origin}: with --build name a folder, where the command writes the archive $ARCHIVE."
            )
        return {"ARCHIVE": str((self._origin / f"{image.replace('/', '-').replace(':', '-')}.tar").resolve())}

    def facts(self, image: str) -> ImageFacts:
        config = self.saved.image_config(image)
        labels = config.get("Labels") or {}
        return ImageFacts(
            image=image,
            image_id=self.saved.image_id(image),
            platform=_PLATFORM,
            host_platform=_PLATFORM,
            user=config.get("User") or "",
            starts=bool(config.get("Entrypoint") or config.get("Cmd")),
            files=self.saved.files(image).intersection(CONTRACT_FILES),
            url=next((labels[name] for name in URL_LABELS if labels.get(name)), ""),
            version=labels.get(VERSION_LABEL, ""),
        )

    def ready(
        self,
        stacks: Sequence[Implementation],
        clock: str,
        *,
        assume_yes: bool,  # noqa: ARG002 - nothing is installed
        extra_cas: Path | None,  # noqa: ARG002 - nothing is fetched
        console: Console,  # noqa: ARG002
    ) -> Ready:
        if clock != clocks.VIRTUAL:
            raise UsageError(
                f"--clock {clock}: jobs without Docker run in virtual time; leave out --clock or --rootless."
            )
        return ready_without_engine(stacks, self.saved)
