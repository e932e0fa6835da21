"""What each link has carried, by day: a tariff's volume is used up over runs, so the record outlives them."""

import fcntl
import json
from datetime import date
from pathlib import Path
from typing import Any

from runner.errors import BudgetError, UsageError
from runner.model.real_link import RealLink
from runner.store import write_atomically
from runner.units import format_size


class Ledger:
    """Bytes of IP packets by link and day, in a JSON file that threads and other runners write, too."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError when the file is there and none of ours: a budget would begin anew, unseen."""
        self._path = path
        self._read()

    def _read(self) -> dict[str, dict[str, int]]:
        try:
            found: Any = json.loads(self._path.read_bytes())
            return {link: {day: int(size) for day, size in days.items()} for link, days in found.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{self._path} can't be read as what links have carried ({error}): mend it, or remove it."
            ) from error

    def add(self, link: str, size: int, *, today: date) -> None:
        """Charge `size` bytes to a link."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_name(f".{self._path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            links = self._read()
            days = links.setdefault(link, {})
            days[today.isoformat()] = days.get(today.isoformat(), 0) + size
            write_atomically(self._path, json.dumps(links, indent=1, sort_keys=True).encode())

    def spent(self, link: str, *, today: date) -> tuple[int, int]:
        """Bytes of today and of this month."""
        days = self._read().get(link, {})
        month = today.isoformat()[:8]
        return days.get(today.isoformat(), 0), sum(size for day, size in days.items() if day.startswith(month))

    def require(self, link: RealLink, size: int, *, today: date) -> None:
        """Raise BudgetError when `size` more bytes would pass a budget of the link."""
        day, month = self.spent(link.name, today=today)
        for used, budget, span in ((day, link.budget_day, "day"), (month, link.budget_month, "month")):
            if budget is not None and used + size > budget:
                raise BudgetError(
                    f"{link.name}: {format_size(used)} of the {format_size(budget)} for this {span} are used, and the "
                    f"next job takes about {format_size(size)}: go on in the next {span}, or raise budget_per_{span} "
                    "in links.json."
                )
