"""Places where the jobs of a run can run: lanes of this host, guests, the hosts of real links."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from rich.console import Console

from runner.campaign import clocks
from runner.campaign.width import Width
from runner.config.choice import Choice
from runner.errors import UsageError
from runner.guests.deployment import Guests
from runner.guests.memory import require_memory
from runner.guests.saved_images import SavedImages
from runner.lanes.emulated import Emulated
from runner.model.deployment import Deployment
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.real_link import RealLink
from runner.plan import runs
from runner.remote.real import RealLinks
from runner.store import RunFolder
from runner.units import format_size


class Opened(NamedTuple):
    """A place that is ready for jobs. `not_compliant`: the reasons why stacks break the contract, by name and role."""

    deployment: Deployment
    not_compliant: Mapping[tuple[str, Role], str]


class Place(ABC):
    """The place where the jobs of one call run."""

    @abstractmethod
    def require(self, choice: Choice) -> None:
        """Raise UsageError for a choice that can't run here."""

    @abstractmethod
    def width(self, lanes: str) -> Width:
        """The number of jobs that run at the same time, for a value of `--lanes`. Raises UsageError, and SetupError
        when this host has too little memory for them."""

    def probe(self, folder: RunFolder, todo: tuple[Job, ...], out: Console) -> Mapping[tuple[str, Role], str]:  # noqa: ARG002
        """Probe the images of `todo` here, before their jobs go to other hosts. Returns the reasons why images break
        the contract, by name and role; empty for a place that doesn't probe images."""
        return {}

    @abstractmethod
    def open(
        self, folder: RunFolder, todo: tuple[Job, ...], width: Width, out: Console
    ) -> AbstractContextManager[Opened]:
        """Make the place ready for the jobs of `todo`; at the end remove everything. Prints each step."""


class LanePlace(Place):
    """Lanes of this host, in real time. They refuse no choice."""

    def require(self, choice: Choice) -> None:
        """Lanes run every choice of emulated links."""

    def width(self, lanes: str) -> Width:
        return Width.parse(lanes)

    def probe(self, folder: RunFolder, todo: tuple[Job, ...], out: Console) -> Mapping[tuple[str, Role], str]:
        with self.open(folder, todo, Width.fixed(1), out) as opened:
            return opened.not_compliant

    @contextmanager
    def open(self, folder: RunFolder, todo: tuple[Job, ...], width: Width, out: Console) -> Iterator[Opened]:
        say = partial(out.print, soft_wrap=True, markup=False)
        with Emulated.open(folder.run, lanes=width.all, say=say) as lanes:
            yield Opened(lanes, lanes.probe(folder.path / "compliance.json", todo))


@dataclass(frozen=True)
class GuestPlace(Place):
    """Guests, in virtual time. They don't probe images. `saved`: images from archives, for a host without an engine."""

    saved: SavedImages | None = None

    def require(self, choice: Choice) -> None:
        for record in choice.records.values():
            if record.beside:
                raise UsageError(
                    f"--clock virtual: guests can't run the second flow of {record.name}: leave out --clock."
                )

    def width(self, lanes: str) -> Width:
        width = clocks.width(lanes, clocks.VIRTUAL)
        require_memory(width.all)  # before the kernel of guests is built, which takes minutes
        return width

    @contextmanager
    def open(self, folder: RunFolder, todo: tuple[Job, ...], width: Width, out: Console) -> Iterator[Opened]:  # noqa: ARG002
        with Guests.open(folder.run, lanes=width.all, scratch=runs.LOGS / ".guests", saved=self.saved) as guests:
            yield Opened(guests, {})


@dataclass(frozen=True)
class LinkPlace(Place):
    """The hosts of real links. Each link is a lane. Images are probed in a lane of this host."""

    links: tuple[RealLink, ...]
    clock: str

    def require(self, choice: Choice) -> None:
        if self.clock != clocks.REAL:
            raise UsageError(f"--clock {self.clock}: a real link runs in real time; leave out --clock or --link.")
        for name in filter(None, choice.selection.vias):
            if not choice.catalog.middleboxes[name].crosses_real_links:
                raise UsageError(
                    f"--via {name}: between each other, its boxes use more than one UDP port of the gateway (no "
                    f"`link_port` in implementations.json), so they can't run at the ends of the real "
                    f"link {self.links[0].name}: leave {name} out."
                )
        for record in choice.records.values():
            if record.beside:
                raise UsageError(f"--case {record.name}: no second flow runs over a real link: leave out --link.")

    def width(self, lanes: str) -> Width:
        if lanes != "1":
            raise UsageError(f"--lanes {lanes}: a real link carries one job at a time; leave out --lanes or --link.")
        return Width.fixed(len(self.links))

    @contextmanager
    def open(self, folder: RunFolder, todo: tuple[Job, ...], width: Width, out: Console) -> Iterator[Opened]:  # noqa: ARG002
        not_compliant = LanePlace().probe(folder, todo, out)
        say, shipping = partial(out.print, soft_wrap=True, markup=False), _Shipping(out)
        with RealLinks.open(folder.run, self.links, ledger=runs.LEDGER, say=say, report=shipping.report) as links:
            yield Opened(links, not_compliant)


@dataclass
class _Shipping:
    """Prints the progress of an image that is sent to a host, in steps of 10 %."""

    out: Console
    _last: str = field(default="")

    def report(self, image: str, sent: int, size: int) -> None:
        tenth = f"  {image}: {10 * sent // max(1, size) * 10} % of {format_size(size)}"
        if tenth != self._last:
            self.out.print(tenth, soft_wrap=True)
            self._last = tenth


def place_of(choice: Choice, clock: str, saved: SavedImages | None = None) -> Place:
    """The place for the jobs of `clock`. `saved`: images from archives, for virtual time without Docker."""
    if choice.real:
        return LinkPlace(choice.real, clock)
    return GuestPlace(saved) if clock == clocks.VIRTUAL else LanePlace()
