"""Records how many bytes each link has carried, by day, over all runs, because a tariff limits the volume."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from runner.errors import BudgetError, UsageError
from runner.model.real_link import RealLink
from runner.store import write_atomically
from runner.units import format_size

Links = dict[str, dict[str, int]]  # bytes by link and day


@dataclass
class Reservation:
    """Bytes that are charged before they are sent. `used`: the bytes that were actually sent; None: unknown, so the
    charge stays."""

    used: int | None = None


class Ledger:
    """Bytes of IP packets by link and day, in a JSON file that several threads and runners share."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError when the file exists but can't be read: otherwise a budget would silently start again."""
        self._path = path
        self._read()

    def _read(self) -> Links:
        try:
            document: Any = json.loads(self._path.read_bytes())
            return {link: {day: int(size) for day, size in days.items()} for link, days in document.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{self._path} can't be read as the record of data volumes ({error}): fix it, or remove it."
            ) from error

    @contextmanager
    def _changing(self) -> Iterator[Links]:
        """The record, locked inside the context. At the end of the context it is written, but not after an error."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_name(f".{self._path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            links = self._read()
            yield links
            write_atomically(self._path, json.dumps(links, indent=1, sort_keys=True).encode())

    def add(self, link: str, size: int, *, today: date) -> None:
        """Charge `size` bytes to a link."""
        with self._changing() as links:
            _charge(links, link, size, today)

    def spent(self, link: str, *, today: date) -> tuple[int, int]:
        """The bytes charged today, and the bytes charged in this month."""
        return _spent(self._read(), link, today)

    @contextmanager
    def reserved(
        self, link: RealLink, size: int, *, today: date, purpose: str = "the next job takes"
    ) -> Iterator[Reservation]:
        """Charge `size` bytes before they are sent, so that they also count when the runner is killed. At the end the
        charge is replaced by the used bytes, if known. Raises BudgetError when the charge would exceed a budget of the
        link."""
        with self._changing() as links:
            _require(link, size, _spent(links, link.name, today), purpose)
            _charge(links, link.name, size, today)
        reservation = Reservation()
        try:
            yield reservation
        finally:
            if reservation.used is not None:
                self.add(link.name, reservation.used - size, today=today)


def _charge(links: Links, link: str, size: int, today: date) -> None:
    days = links.setdefault(link, {})
    days[today.isoformat()] = days.get(today.isoformat(), 0) + size


def _spent(links: Links, link: str, today: date) -> tuple[int, int]:
    days, month = links.get(link, {}), today.isoformat()[:8]
    return days.get(today.isoformat(), 0), sum(size for day, size in days.items() if day.startswith(month))


def _require(link: RealLink, size: int, spent: tuple[int, int], purpose: str) -> None:
    budgets = zip(spent, (link.budget_day, link.budget_month), ("day", "month"), strict=True)
    for used, budget, span in budgets:
        if budget is not None and used + size > budget:
            raise BudgetError(
                f"{link.name}: {format_size(used)} of the {format_size(budget)} for this {span} are used, and "
                f"{purpose} about {format_size(size)}: continue in the next {span}, or raise "
                f"budget_per_{span} in links.json."
            )
