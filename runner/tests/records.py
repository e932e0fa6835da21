"""Records and selections that many tests make."""

from dataclasses import replace
from pathlib import Path

from runner.model.link import LinkParameters, LinkRecord, PathImpairments, RealLink
from runner.model.run import CaseRecord
from runner.model.stack import Role
from runner.plan.catalog import Catalog
from runner.plan.choice import CaseVariant, Selection, named_cases, named_implementations
from runner.plan.links import real_record

RECORDINGS = Path(__file__).parent / "recordings"


def directed(
    record: CaseRecord,
    *,
    forward: LinkParameters | None = None,
    return_: LinkParameters | None = None,
    impairments: PathImpairments | None = None,
) -> CaseRecord:
    """The case over a link of one segment with these directions and impairments."""
    first = record.link.satellite
    ways = forward or first.forward, return_ or first.return_, impairments or first.impairments
    return replace(record, link=LinkRecord.single(record.link.name, *ways))


def select(
    catalog: Catalog,
    *,
    servers: tuple[str, ...] = (),
    clients: tuple[str, ...] = (),
    cases: tuple[str, ...] = (),
    iterations: int | None = None,
) -> Selection:
    """A selection of these names, with each case over its own link."""
    return Selection.of(
        catalog,
        servers=named_implementations(catalog, servers, Role.SERVER),
        clients=named_implementations(catalog, clients, Role.CLIENT),
        cases=named_cases(catalog, cases),
        iterations=iterations,
    )


def over_real(catalog: Catalog, links: tuple[RealLink, ...], cases: tuple[str, ...]) -> dict[str, CaseRecord]:
    """The records of the cases over the first link; without cases, of the measurement of each link. `catalog` has
    these measurements."""
    real = {link.name: link for link in links}
    requested = [
        CaseVariant(declared=name, link="" if name in real else links[0].name) for name in named_cases(catalog, cases)
    ]
    questions = requested if cases else [CaseVariant(declared=name) for name in real]
    links_by_name = {name: real_record(link) for name, link in real.items()}
    records = [question.record(catalog.cases, links_by_name) for question in questions]
    return {record.name: record for record in records}
