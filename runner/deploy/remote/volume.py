"""What each link has carried, by day: a tariff's volume is used up over runs, so the record outlives them."""

import json
import threading
from datetime import date
from pathlib import Path

from runner.errors import BudgetError
from runner.model.real_link import RealLink
from runner.store import write_atomically
from runner.units import format_size


class Ledger:
    """Bytes of IP packets by link and day, in a JSON file. Thread-safe; one runner at a time may have the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._days: dict[str, dict[str, int]] = json.loads(path.read_bytes()) if path.is_file() else {}

    def add(self, link: str, size: int, *, today: date) -> None:
        """Charge `size` bytes to a link."""
        with self._lock:
            days = self._days.setdefault(link, {})
            days[today.isoformat()] = days.get(today.isoformat(), 0) + size
            write_atomically(self._path, json.dumps(self._days, indent=1, sort_keys=True).encode())

    def spent(self, link: str, *, today: date) -> tuple[int, int]:
        """Bytes of today and of this month."""
        days = self._days.get(link, {})
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
