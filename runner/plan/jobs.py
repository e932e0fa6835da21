"""Makes the jobs of a selection in their order, and finds the jobs that are left. Pure."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runner.config.catalog import Catalog
from runner.config.selection import Selection, iterations_of
from runner.model.implementation import Implementation, Role
from runner.model.job import Job
from runner.model.protocol import TRANSPORTS, transport_of
from runner.model.result import Finding, Outcome, Result
from runner.model.run import CaseRecord

# The first case of every pair. When it fails, the other cases would fail for the same reason.
GATE = "handshake"
GATE_FAILED = "handshake-failed"


def jobs(selection: Selection, cases: Mapping[str, CaseRecord], *, shuffle_seed: int | None = None) -> tuple[Job, ...]:
    """Every job of the selection. Iterations are the outer loop, so that an interrupted run has complete matrices.

    Handshakes come first, because a pair whose handshake fails skips its other cases. The jobs of a pair with different
    middleboxes run one after the other, so that the conditions of a real link are similar. Each iteration begins with a
    different middlebox, so that no middlebox is always first. With `shuffle_seed` the order is random and reproducible,
    so that jobs that follow each other are not neighbours in the matrix.
    """
    ordered = [
        Job(server=server, client=client, via=via, case=record.case, link=record.link_name, iteration=iteration)
        for record in (cases[name] for name in selection.cases)
        for iteration in range(1, iterations_of(selection, record) + 1)
        for server in selection.servers
        for client in selection.clients
        for via in _rotated(selection.vias, iteration)
    ]
    ordered.sort(key=lambda job: job.iteration)
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(ordered)
    ordered.sort(key=lambda job: job.case != GATE)
    return tuple(ordered)


def _rotated(vias: Sequence[str], iteration: int) -> Sequence[str]:
    first = (iteration - 1) % len(vias)
    return (*vias[first:], *vias[:first])


def fits(catalog: Catalog, cases: Mapping[str, CaseRecord], job: Job) -> bool:
    """True when the job has the kinds of client and server that its case needs."""
    client, (server_stack, client_stack) = cases[job.case_link].client, _pair(catalog, job)
    return client_stack.kind == client.value and server_stack.kind == client.server


def gate(job: Job) -> Job:
    """The job that must succeed before `job` is run."""
    return replace(job, case=GATE, link="", iteration=1)


def cannot_talk(handshake: Result) -> bool:
    """True when the pair of this result transferred no file, so that no other case can succeed. A handshake may fail
    although its file arrived, such as after a Retry that the case forbids."""
    return handshake.outcome is Outcome.FAILED and handshake.delivered is False


def gated(job: Job, done: Mapping[Job, Result]) -> Finding | None:
    """A finding with the reason why `job` is skipped: the handshake of its pair failed. None when the job may run."""
    before = done.get(gate(job))
    if job.case == GATE or before is None or not cannot_talk(before):
        return None
    why = f"{before.findings[0].code}: {before.findings[0].actual}" if before.findings else before.outcome.value
    return Finding(
        code=GATE_FAILED,
        requirement="The client gets a file from the server before the pair runs other cases.",
        expected=f"the file of `{GATE}`",
        actual=why,
    )


def remaining(order: Iterable[Job], done: Mapping[Job, Result], retry: frozenset[Outcome]) -> tuple[Job, ...]:
    """The jobs without a result, the jobs whose outcome is in `retry`, and jobs that were skipped because of their
    pair's handshake, when this handshake runs again or no longer prevents them."""
    left = {job for job in order if job not in done or done[job].outcome in retry}

    def reopened(job: Job) -> bool:
        codes = [finding.code for finding in done[job].findings]
        return GATE_FAILED in codes and (gate(job) in left or gated(job, done) is None)

    return tuple(job for job in order if job in left or reopened(job))


def declared_unsupported(catalog: Catalog, job: Job) -> str | None:
    """The reason why the pair can't run the job, according to the declarations of its stacks and its middlebox; None
    when the pair can run it."""
    spoken = protocol(catalog, job)
    if spoken is not None:
        return _not_carried(catalog, job, spoken)
    case, server, client = catalog.cases[job.case], *_pair(catalog, job)
    shared = [name for name in server.speaks if name in client.speaks]
    if not shared:
        return f"{job.server} speaks {', '.join(server.speaks)}, {job.client} speaks {', '.join(client.speaks)}"
    possible = [name for name in case.protocols if name in shared]
    if not possible:
        protocols = " or ".join(case.protocols)
        return f"{job.server} and {job.client} share {', '.join(shared)} only, and {job.case} runs over {protocols}"
    role, stack = next(
        (role, stack)
        for role, stack in ((Role.SERVER, server), (Role.CLIENT, client))
        if not all(stack.claims(role, case.wire(role, name)) for name in possible)
    )
    lacking = [case.wire(role, name) for name in possible if not stack.claims(role, case.wire(role, name))]
    names = " and ".join(f"'{name}'" for name in lacking)
    return f"{stack.name} declares no support of {names} as {role.value}"


def _not_carried(catalog: Catalog, job: Job, spoken: str) -> str | None:
    """The reason why the middlebox does not carry the protocol; None when the middlebox carries it, or when there is no
    middlebox."""
    carries = catalog.middleboxes[job.via].carries if job.via else TRANSPORTS
    if transport_of(spoken) in carries:
        return None
    return f"{job.via} carries {' and '.join(carries)} only, and {spoken} runs over {transport_of(spoken)}"


def protocol(catalog: Catalog, job: Job) -> str | None:
    """The ALPN of the job: the first protocol of the case that both stacks speak and for which both claim the case.
    None when there is no such protocol."""
    case, server, client = catalog.cases[job.case], *_pair(catalog, job)
    for name in case.protocols:
        spoken = name in server.speaks and name in client.speaks
        wire_server, wire_client = case.wire(Role.SERVER, name), case.wire(Role.CLIENT, name)
        if spoken and server.claims(Role.SERVER, wire_server) and client.claims(Role.CLIENT, wire_client):
            return name
    return None


def _pair(catalog: Catalog, job: Job) -> tuple[Implementation, Implementation]:
    return catalog.implementations[job.server], catalog.implementations[job.client]
