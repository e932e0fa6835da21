"""What a plan takes of real links: volume against budgets, and when it is done, quiet hours included. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from typing import NamedTuple

from runner.deploy.remote.real import FIND_BYTES, expected_volume
from runner.deploy.remote.volume import Ledger
from runner.model.job import Job
from runner.model.real_link import RealLink
from runner.model.run import CaseRecord
from runner.pause import Pause
from runner.plan import estimate
from runner.units import format_size

_YEAR = 366  # days: a plan that takes longer is told as one that doesn't fit


class _Share(NamedTuple):
    """What one job takes: bytes of its link, seconds."""

    size: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LinkPlan:
    """One link's part of a plan, begun now. Bytes of IP packets, both directions; seconds of jobs alone."""

    link: RealLink
    jobs: int
    volume: int
    seconds: float
    spent_day: int
    spent_month: int
    begins: datetime
    ends: datetime | None  # of the last job; None: it never fits
    first_day: int  # jobs that the budgets hold before the run ends for the first time
    broken: str  # which budget ends it first, "day" or "month"; empty: the budgets hold the plan
    rests: bool  # whether it meets quiet hours
    calls: int  # how often `run` is to be called, one call a span that a budget ends

    @property
    def sentences(self) -> Iterator[str]:
        """What the user should know before: a budget that doesn't hold, hours in which the link rests."""
        name, link = self.link.name, self.link
        if self.broken:
            budget = (link.budget_day if self.broken == "day" else link.budget_month) or 0
            which = f"budget_per_{self.broken}"
            holds = f"{name}: {which} ({format_size(budget)}) holds {self.first_day} of {self.jobs} jobs"
            how = f"raise {which} in links.json"
            if self.ends is None:
                yield f"{holds}, and one job alone is more: {how}."
            else:
                yield (
                    f"{holds} now: the run then ends, and goes on with the same command, {self.calls - 1} times, until "
                    f"{_moment(self.ends)}; or {how}."
                )
        if self.rests and self.ends is not None:
            hours = " and ".join(link.quiet_hours)
            yield f"{name}: begun now, its jobs rest in the quiet hours {hours} and end {_moment(self.ends)}."


def link_plans(
    todo: Iterable[Job], cases: Mapping[str, CaseRecord], links: Collection[RealLink], *, ledger: Ledger, now: datetime
) -> tuple[LinkPlan, ...]:
    """What the jobs take of each link, if all links begin `now`."""
    shares: dict[str, list[_Share]] = {link.name: [] for link in links}
    known = {link.name: link for link in links}
    for job in todo:
        record = cases[job.case].real_link
        if record is not None and record.name in known:
            size = expected_volume(known[record.name], cases[job.case])
            shares[record.name].append(_Share(size, estimate((job,), cases).seconds))
    return tuple(_walk(known[name], of_link, ledger, now) for name, of_link in shares.items())


def _walk(link: RealLink, shares: list[_Share], ledger: Ledger, now: datetime) -> LinkPlan:
    """Go through the jobs in time: wait in quiet hours, stop for the day or month whose budget is used up."""
    day, month = ledger.spent(link.name, today=now.date())
    found = LinkPlan(
        link=link,
        jobs=len(shares),
        volume=FIND_BYTES + sum(share.size for share in shares),
        seconds=sum(share.seconds for share in shares),
        spent_day=day,
        spent_month=month,
        begins=now,
        ends=None,
        first_day=len(shares),
        broken="",
        rests=False,
        calls=1,
    )
    moment, day, month = now, day + FIND_BYTES, month + FIND_BYTES
    for number, (size, seconds) in enumerate(shares):
        rested = _after_quiet(link, moment)
        found, moment = replace(found, rests=found.rests or rested > moment), rested
        while span := _passed(link, day + size, month + size):
            if not found.broken:
                found = replace(found, broken=span, first_day=number)
            if (link.budget_day or link.budget_month or 0) < size + FIND_BYTES or (moment - now).days > _YEAR:
                return found
            later = _next(moment, span)
            day, month = FIND_BYTES, FIND_BYTES + (month if later.month == moment.month else 0)
            moment, found = _after_quiet(link, later), replace(found, calls=found.calls + 1)
        after = moment + timedelta(seconds=seconds)
        day = day + size if after.date() == moment.date() else 0
        month = month + size if after.month == moment.month else 0
        moment = after
    return replace(found, ends=moment)


def _passed(link: RealLink, day: int, month: int) -> str:
    """Which budget that many bytes would pass."""
    if link.budget_month is not None and month > link.budget_month:
        return "month"
    return "day" if link.budget_day is not None and day > link.budget_day else ""


def _next(moment: datetime, span: str) -> datetime:
    """The first moment of the next day or month."""
    day = moment.date() + timedelta(days=1)
    if span == "month":
        day = (moment.date().replace(day=1) + timedelta(days=32)).replace(day=1)
    return datetime.combine(day, time())


def _after_quiet(link: RealLink, moment: datetime) -> datetime:
    """The first moment from then on in which a job may begin."""
    for _ in link.quiet_hours:  # spans that touch: the end of one may lie in another
        for span in link.quiet_hours:
            moment += timedelta(seconds=Pause.parse(span, lambda at=moment: at).seconds_left())  # type: ignore[misc]
    return moment


def _moment(moment: datetime) -> str:
    return f"on {moment:%A %d %B} at {moment:%H:%M}"
