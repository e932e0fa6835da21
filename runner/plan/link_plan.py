"""Computes the volume and the end of a plan over real links, with their budgets and quiet hours. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, time, timedelta
from typing import NamedTuple

from runner.model.estimate import estimate
from runner.model.job import Job
from runner.model.link_plan import LinkPlan
from runner.model.pause import Pause
from runner.model.real_link import RealLink
from runner.model.run import CaseRecord
from runner.remote.real import FIND_BYTES, expected_volume
from runner.remote.volume import Ledger

_YEAR = 366  # days; a plan that takes longer counts as a plan that never fits into the budgets


class _Share(NamedTuple):
    """The cost of one job: `size` in bytes on its link, and its time in seconds."""

    size: int
    seconds: float


def link_plans(
    todo: Iterable[Job], cases: Mapping[str, CaseRecord], links: Collection[RealLink], *, ledger: Ledger, now: datetime
) -> tuple[LinkPlan, ...]:
    """The plan of each link when the jobs of all links begin `now`."""
    shares: dict[str, list[_Share]] = {link.name: [] for link in links}
    known = {link.name: link for link in links}
    for job in todo:
        record = cases[job.case_link].real_link
        if record is not None and record.name in known:
            size = expected_volume(known[record.name], cases[job.case_link])
            shares[record.name].append(_Share(size, estimate((job,), cases).seconds))
    return tuple(_walk(known[name], of_link, ledger, now) for name, of_link in shares.items())


def _walk(link: RealLink, shares: list[_Share], ledger: Ledger, now: datetime) -> LinkPlan:
    """Go through the jobs in the order of time. In quiet hours, wait. When a budget is used up, continue on the next
    day or in the next month."""
    day, month = ledger.spent(link.name, today=now.date())
    plan = LinkPlan(
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
        plan, moment = replace(plan, rests=plan.rests or rested > moment), rested
        while span := _exceeded(link, day + size, month + size):
            if not plan.broken:
                plan = replace(plan, broken=span, first_day=number)
            if (link.budget_day or link.budget_month or 0) < size + FIND_BYTES or (moment - now).days > _YEAR:
                return plan
            later = _next(moment, span)
            day, month = FIND_BYTES, FIND_BYTES + (month if later.month == moment.month else 0)
            moment, plan = _after_quiet(link, later), replace(plan, calls=plan.calls + 1)
        after = moment + timedelta(seconds=seconds)
        day = day + size if after.date() == moment.date() else 0
        month = month + size if after.month == moment.month else 0
        moment = after
    return replace(plan, ends=moment)


def _exceeded(link: RealLink, day: int, month: int) -> str:
    """The budget that these bytes would exceed: `month`, `day`, or empty when both are large enough."""
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
    """The first moment from `moment` on at which a job may begin."""
    for _ in link.quiet_hours:  # the end of one span may be inside another span
        for span in link.quiet_hours:
            moment += timedelta(seconds=Pause.parse(span, lambda at=moment: at).seconds_left())  # type: ignore[misc]
    return moment
