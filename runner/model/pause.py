"""Hours of the day in which no job starts, for example because people use the terminal by day."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from runner.errors import UsageError

_FORMAT = re.compile(r"^([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)$")


@dataclass(frozen=True)
class Pause:
    """The hours from `begin` to `end`, in local time. They may include midnight."""

    begin: time
    end: time
    now: Callable[[], datetime] = datetime.now

    @classmethod
    def parse(cls, text: str, now: Callable[[], datetime] = datetime.now) -> "Pause":
        """Parse hours such as `18:00-23:00`. Raises UsageError for another form, and when begin and end are equal."""
        match = _FORMAT.match(text.strip())
        if match is None or match[1] + match[2] == match[3] + match[4]:
            raise UsageError(f"--pause: '{text}' is not a span of hours: write it as 18:00-23:00.")
        return cls(time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4])), now)

    def holds(self, clock: time) -> bool:
        """True when no job may start at this time of day."""
        inside = (self.begin <= clock, clock < self.end)
        return all(inside) if self.begin < self.end else any(inside)

    def seconds_left(self) -> float:
        """The seconds until the end of the pause; 0 when there is no pause now."""
        moment = self.now()
        if not self.holds(moment.time()):
            return 0.0
        over = datetime.combine(moment.date(), self.end)
        if over <= moment:
            over += timedelta(days=1)
        return (over - moment).total_seconds()
