"""Which case runs over which real link: those that are named, else the measurement of each link. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from runner.config.catalog import Catalog
from runner.errors import UsageError
from runner.model.real_link import RealLink, RealLinkRecord
from runner.model.run import CaseRecord
from runner.model.scenario import RealScenario
from testcases.base import Case, real_parameters
from testcases.measurements import measurement


def with_measurements(catalog: Catalog, links: Iterable[RealLink]) -> Catalog:
    """The catalogue with a measurement for each link: the declared one of its name, or one after links.json."""
    cases = dict(catalog.cases)
    for link in links:
        if link.name in catalog.cases:
            if not catalog.cases[link.name].is_real:
                raise UsageError(
                    f"links.json, link '{link.name}': that is the name of a test case: give the link another name."
                )
            continue
        case = measurement_of(link)
        taken = {one.abbreviation.lower(): one.name for one in cases.values()}
        if other := taken.get(case.abbreviation.lower()):
            raise UsageError(
                f"links.json, link '{link.name}': its abbreviation {case.abbreviation} is that of {other}: "
                "give the link another `abbreviation`."
            )
        cases[link.name] = case
    return replace(catalog, cases=cases)


def measurement_of(link: RealLink) -> Case:
    """10 MiB over this link, as often as links.json says."""
    what = " ".join(filter(None, (link.provider, link.tariff))) or link.name
    return measurement(
        name=link.name,
        abbreviation=link.abbreviation or link.name.replace("-", "")[:4].upper(),
        description=f"10 MiB over {what}, a real link.",
        scenario=RealScenario(
            name=link.name.upper(),
            forward_rate=link.forward_rate,
            return_rate=link.return_rate,
            source="links.json",
        ),
        timeout=link.timeout,
        iterations=link.iterations,
    )


def case_of(record: CaseRecord) -> Case:
    """The declaration of a measurement over a link that this host's links.json may not know, for a new judgement."""
    return measurement(
        name=record.name,
        abbreviation=record.abbreviation,
        description=record.description,
        scenario=RealScenario(
            name=record.scenario,
            forward_rate=record.forward.data_rate,
            return_rate=record.return_.data_rate,
            source="run.json",
        ),
        timeout=record.timeout,
        iterations=record.iterations,
    )


def assign(catalog: Catalog, links: tuple[RealLink, ...], names: tuple[str, ...]) -> dict[str, RealLink]:
    """The link of each case of `names`, the selected ones; without names, each link's own measurement.

    Raises UsageError for a case that can't run over a real link, and for one of which nobody can tell over which.
    """
    by_name = {link.name: link for link in links}
    if not names:
        return by_name
    found = {}
    for name in catalog.select_cases(names):
        case = catalog.cases[name]
        if not case.is_clean:
            raise UsageError(
                f"--case {name}: it needs a link that loses or changes packets when it is told to, and a real one "
                "doesn't: run it without --link."
            )
        if name in by_name:
            found[name] = by_name[name]
        elif len(links) == 1:
            found[name] = links[0]
        else:
            raise UsageError(f"--case {name}: over {' or '.join(by_name)}? Name one --link for it.")
    return found


def refuse_real(catalog: Catalog, names: Iterable[str]) -> None:
    """Raise UsageError when a case that runs over a real link only is selected without one."""
    for name in names:
        if catalog.cases[name].is_real:
            raise UsageError(f"--case {name}: it runs over a real link: name one of links.json with --link.")


def bound(record: CaseRecord, link: RealLink) -> CaseRecord:
    """A case as it runs over this link."""
    return replace(
        record,
        scenario=link.name.upper(),
        forward=real_parameters(link.forward_rate),
        return_=real_parameters(link.return_rate),
        real_link=RealLinkRecord.of(link),
    )


def bound_all(records: Mapping[str, CaseRecord], links: Mapping[str, RealLink]) -> dict[str, CaseRecord]:
    """All cases of a run, those over a link bound to it."""
    return {name: bound(record, links[name]) if name in links else record for name, record in records.items()}
