"""Makes a measurement for each real link. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from runner.config.catalog import Catalog
from runner.errors import UsageError
from runner.model.link import AdvertisedLink
from runner.model.link_record import LinkParameters, LinkRecord
from runner.model.real_link import RealLink, RealLinkRecord
from runner.model.run import CaseRecord
from testcases.base import Case
from testcases.measurements import measurement


def with_measurements(catalog: Catalog, links: Iterable[RealLink]) -> Catalog:
    """The catalogue with a measurement for each link. A measurement that is declared with the link's name is kept. For
    other links a measurement is made from links.json."""
    cases = dict(catalog.cases)
    for link in links:
        if link.name in catalog.cases:
            if not catalog.cases[link.name].is_real:
                raise UsageError(
                    f"links.json, link '{link.name}': that is the name of a test case: give the link another name."
                )
            continue
        case = measurement_of(link)
        taken = {known.abbreviation.lower(): known.name for known in cases.values()}
        if other := taken.get(case.abbreviation.lower()):
            raise UsageError(
                f"links.json, link '{link.name}': its abbreviation {case.abbreviation} is also that of {other}: "
                "give the link another `abbreviation`."
            )
        cases[link.name] = case
    return replace(catalog, cases=cases)


def measurement_of(link: RealLink) -> Case:
    """A measurement of 10 MiB over this link, with the number of iterations in links.json."""
    access = " ".join(filter(None, (link.provider, link.tariff))) or link.name
    return measurement(
        name=link.name,
        abbreviation=link.abbreviation or link.name.replace("-", "")[:4].upper(),
        description=f"10 MiB over {access}, a real link.",
        link=AdvertisedLink(
            name=link.name.upper(),
            forward_rate=link.forward_rate,
            return_rate=link.return_rate,
            source="links.json",
        ),
        timeout=link.timeout,
        iterations=link.iterations,
    )


def declaration(cases: Mapping[str, Case], record: CaseRecord) -> Case | None:
    """The declaration of a recorded case, which is needed to judge a job again; None when the declaration was deleted.
    A measurement of a real link is made from the record, because this host's links.json may not have the link.
    """
    case = cases.get(record.declared or record.case)
    if case is not None:
        return replace(case, name=record.case, files=record.file_sizes)
    if record.real_link is None:
        return None
    return measurement(
        name=record.case,
        abbreviation=record.abbreviation,
        description=record.description,
        link=AdvertisedLink(
            name=record.link.name,
            forward_rate=record.forward.data_rate,
            return_rate=record.return_.data_rate,
            source="run.json",
        ),
        timeout=record.timeout,
        iterations=record.iterations,
    )


def real_record(link: RealLink) -> LinkRecord:
    """A real link as `run.json` stores it. Only its advertised data rates are known before a job."""
    forward, return_ = (LinkParameters.advertised(rate) for rate in (link.forward_rate, link.return_rate))
    return replace(LinkRecord.single(link.name, forward, return_), real=RealLinkRecord.of(link))
