"""The subject of a check or comparison: its name, its peers, cases and jobs."""

import re
from collections.abc import Iterable, Sequence

from runner.config.catalog import Catalog
from runner.config.names import named
from runner.errors import UsageError
from runner.model.implementation import Implementation, Role
from runner.model.job import Job
from runner.model.run import Kind
from runner.plan.jobs import declared_unsupported

PEERS = ("quic-go", "quinn", "aioquic")  # built from this repository
FIRST_CASES = ("handshake", "http3")  # a role that passes neither of them can't pass any other case
MEASUREMENTS = ("goodput", "sat")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9.-]+")


def select_peers(catalog: Catalog, names: Iterable[str]) -> tuple[str, ...]:
    """The peers in the order of `names`, without repetitions. Raises UsageError for a stack that the catalogue doesn't
    have."""
    peers = tuple(dict.fromkeys(names))
    named(peers, list(catalog.implementations), kind="stack", option="--peer")
    return peers


def select_cases(catalog: Catalog, names: tuple[str, ...]) -> tuple[str, ...]:
    """The selected cases; without a selection every test case, goodput and sat. Handshakes come first."""
    chosen = catalog.select_cases(names)
    if not names:
        chosen = tuple(name for name in chosen if catalog.cases[name].kind is Kind.TEST_CASE or name in MEASUREMENTS)
    return tuple(sorted(chosen, key=lambda name: name not in FIRST_CASES))


def subject_name(name: str | None, image: str, peers: Sequence[str]) -> str:
    """The name of the stack under check: `name`, or a name made from the name of the image. Raises UsageError for an
    unusable name."""
    if name is None:
        last = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        name = _NOT_A_NAME.sub("-", last).strip("-.") or "image"
        name = f"{name}-candidate" if name in peers else name
    if not name or _NOT_A_NAME.search(name) or name.startswith(".") or name in peers:
        raise UsageError(f"--name {name}: use letters, digits, '-' and '.' only, and not the name of a peer.")
    return name


def jobs_with_peers(
    catalog: Catalog, entry: Implementation, cases: Iterable[str], peers: Sequence[str], *, most: int
) -> list[Job]:
    """The jobs of each case in each role that the case judges, with the first `most` peers that support it."""
    jobs = []
    for case in cases:
        for role in (role for role in entry.roles if role in catalog.cases[case].judges):
            pairs = [
                Job(server=entry.name, client=peer, case=case, iteration=1)
                if role is Role.SERVER
                else Job(server=peer, client=entry.name, case=case, iteration=1)
                for peer in peers
            ]
            able = [job for job in pairs if declared_unsupported(catalog, job) is None]
            jobs += able[:most]
    return jobs
