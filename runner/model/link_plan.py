"""The part of a plan that runs over one real link: its volume, the link's budgets, and its end."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from runner.model.real_link import RealLink
from runner.units import format_size


@dataclass(frozen=True, kw_only=True)
class LinkPlan:
    """The part of a plan that runs over one link and begins now. Volumes are bytes of IP packets in both directions.
    `seconds`: the time of the jobs, without quiet hours and waiting for budgets."""

    link: RealLink
    jobs: int
    volume: int
    seconds: float
    spent_day: int
    spent_month: int
    begins: datetime
    ends: datetime | None  # the end of the last job; None: the plan never fits into the budgets
    first_day: int  # number of jobs until a budget ends the run for the first time
    broken: str  # the budget that ends the run first, "day" or "month"; empty: the budgets are large enough
    rests: bool  # True: quiet hours interrupt the plan
    calls: int  # number of necessary calls of `run`: a used-up budget ends a call

    @property
    def sentences(self) -> Iterator[str]:
        """Warnings for the user: a budget that is too small for the plan, quiet hours of the link."""
        name, link = self.link.name, self.link
        if self.broken:
            budget = (link.budget_day if self.broken == "day" else link.budget_month) or 0
            which = f"budget_per_{self.broken}"
            holds = f"{name}: {which} ({format_size(budget)}) is enough for {self.first_day} of {self.jobs} jobs"
            how = f"raise {which} in links.json"
            if self.ends is None:
                yield f"{holds}, and a single job needs more: {how}."
            else:
                yield (
                    f"{holds} now, then the run ends. Continue it with the same command, {self.calls - 1} times, until "
                    f"{_moment(self.ends)}; or {how}."
                )
        if self.rests and self.ends is not None:
            hours = " and ".join(link.quiet_hours)
            yield f"{name}: if it begins now, its jobs pause in the quiet hours {hours} and end {_moment(self.ends)}."


def _moment(moment: datetime) -> str:
    return f"on {moment:%A %d %B} at {moment:%H:%M}"
