"""Jobs that were once judged *succeeded* although their packets show what the case forbids. Each is a good recording
with that one thing changed, judged as its case; before the change it passes."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from lab.mutants import violations
from lab.mutate.mutants import MUTANTS
from lab.mutate.mutation import Mutation, Sent
from lab.mutate.recording import CLIENT, SERVER, Recording
from lab.mutate.wire import F, Kind
from runner.judge.judges import analyse
from runner.model.result import Artifacts, Outcome, Result
from runner.model.run import Job
from runner.plan.catalog import Catalog
from runner.tests.recordings.conformance import GOOD, GOOD_ONES, changed, sizes
from runner.tests.records import RECORDINGS

CERTIFICATE = 11


def _changes() -> dict[tuple[str, str], dict[str, object]]:
    """Recording and case → how its record differs from the case's own."""
    small = {(path, case): dict(sizes(*each)) if each else {} for path, case, each in GOOD_ONES}
    return small | {(good.path, good.case): dict(good.changes) for good in GOOD}


CHANGES = _changes()


def _small_chain(m: Mutation) -> None:
    """The first flight never comes near the limit."""
    m.edit_message(CERTIFICATE, lambda message: setattr(message, "before", message.before[:600]))


def _as_ect1(m: Mutation) -> None:
    """ECT(0) is reported as ECT(1)."""
    for datagram, packet, each in m.frames(F.ACK_ECN):
        m.replace((datagram, packet), each, each.but(ect0=0, ect1=each["ect0"]))


def _still(m: Mutation) -> None:
    """Counts stand still from the first ACK on."""
    first: dict[str, tuple[int, int, int]] = {}
    for datagram, packet, each in m.frames(F.ACK_ECN):
        ect0, ect1, ce = first.setdefault(packet.space, (each["ect0"], each["ect1"], each["ce"]))
        m.replace((datagram, packet), each, each.but(ect0=ect0, ect1=ect1, ce=ce))


def _at_once(m: Mutation) -> None:
    """The second ClientHello leaves with the first, not after a probe timeout."""
    hellos = m.packets(Kind.INITIAL, where=lambda _, packet: any(each.type == F.CRYPTO for each in packet.frames))
    first = hellos[0][0]
    answered = min(
        each.seen[CLIENT].time_ns for each in m.recording.datagrams if each.sender == SERVER and each.arrived
    )
    for at, (datagram, _) in enumerate(hellos[1:], 1):
        if datagram is not first and datagram.sent_ns < answered:
            m.recording.move(datagram, (first.sent_ns - datagram.sent_ns) / 1e9 + at * 0.0001)


def _follows_only(m: Mutation) -> None:
    """The client keeps its old keys until a packet of the server with new keys has arrived."""

    def sent(role: str, generation: int) -> list[Sent]:
        packets = m.packets(Kind.ONE_RTT, sender=role)
        return [each for each in packets if each[1].keys and each[1].keys.generation == generation]

    arrived = min(datagram.seen[CLIENT].time_ns for datagram, _ in sent(SERVER, 1) if datagram.arrived)
    old = sent(CLIENT, 0)[0][1].keys
    for datagram, packet in sent(CLIENT, 1):
        if datagram.sent_ns <= arrived:
            packet.keys, packet.first, packet.changed = old, packet.first ^ 4, True


def _by_rule(rule: str, role: str) -> Callable[[Mutation], None]:
    return next(mutant.apply for mutant in MUTANTS if (mutant.rule, mutant.role) == (rule, role))


HANDSHAKE, RETRY = ("quinn_quinn/handshake", "handshake"), ("quic-go_quinn/retry", "retry")
ECN, HTTP3 = ("quinn_quic-go/ecn", "ecn"), ("quic-go_quinn/http3", "http3")
UPDATE = ("quinn_aioquic/keyupdate", "keyupdate")
PORT = ("quinn_quic-go/rebind-port", "rebind-port")
UPGRADE, CREDIT = ("ngtcp2_ngtcp2/v2", "v2"), ("quinn_quic-go/credit", "transfer")
CRAFTED: dict[str, tuple[tuple[str, str], str, Callable[[Mutation], None]]] = {
    "a first flight that never comes near the limit": (
        ("quinn_quinn/amplificationlimit", "amplificationlimit"),
        SERVER,
        _small_chain,
    ),
    "the client reports ECT(0) as ECT(1)": (ECN, CLIENT, _as_ect1),
    "the server reports ECT(0) as ECT(1)": (ECN, SERVER, _as_ect1),
    "counts that stand still": (ECN, CLIENT, _still),
    "two ClientHellos at once": (("quic-go_quinn/longrtt", "longrtt"), CLIENT, _at_once),
}
for _name, _where, _rule, _role in (
    ("no control stream of the client", HTTP3, "rfc9114-6.2.1-no-control-stream", CLIENT),
    ("no control stream of the server", HTTP3, "rfc9114-6.2.1-no-control-stream", SERVER),
    ("no SETTINGS at first", HTTP3, "rfc9114-6.2.1-first-frame-not-settings", SERVER),
    ("another token of the same length", RETRY, "rfc9000-17.2.5.3-token-not-echoed", CLIENT),
    ("no retry_source_connection_id", RETRY, "rfc9000-7.3-retry-source-missing", SERVER),
    ("old keys on higher numbers", UPDATE, "rfc9001-6.4-old-keys-on-higher-number", CLIENT),
    ("an update before confirmation", UPDATE, "rfc9001-6.1-update-before-confirmed", CLIENT),
    ("a packet of version 2 with keys of version 1", UPGRADE, "rfc9369-3.3.1-initial-keys", CLIENT),
    ("Handshake packets of version 2 with keys of version 1", UPGRADE, "rfc9369-3.3.2-key-labels", SERVER),
    ("data beyond the limit of the connection", CREDIT, "rfc9000-4.1-connection-limit", SERVER),
    ("a small challenge", PORT, "rfc9000-8.2.1-challenge-not-padded", SERVER),
    ("an Initial datagram below 1200 B", HANDSHAKE, "rfc9000-14.1-client-initial-small", CLIENT),
    ("a wrong original DCID", HANDSHAKE, "rfc9000-7.3-original-destination-wrong", SERVER),
    ("STREAM frames in Handshake packets", HANDSHAKE, "rfc9000-12.5-frame-in-handshake", CLIENT),
    ("HANDSHAKE_DONE from the client", HANDSHAKE, "rfc9000-19.20-handshake-done-from-client", CLIENT),
    ("ACKs of packets never sent", ("aioquic_aioquic/handshake", "handshake"), "rfc9000-13.1-ack-of-unsent", SERVER),
):
    CRAFTED[_name] = (_where, _role, _by_rule(_rule, _role))
# The case is not about the broken rule: the job succeeds, with a mark (§).
MARKED = {
    "no retry_source_connection_id",
    "a small challenge",
    "an Initial datagram below 1200 B",
    "a wrong original DCID",
    "STREAM frames in Handshake packets",
    "HANDSHAKE_DONE from the client",
    "ACKs of packets never sent",
}


def _judge(catalog: Catalog, folder: Path, where: tuple[str, str]) -> Result:
    case = catalog.cases[where[1]]
    job = Job(server="s", client="c", case=where[1], iteration=1)
    return analyse(job, Artifacts(folder), case, changed(case.record(), CHANGES[where]))


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_job_fails_or_has_a_mark(name: str, catalog: Catalog, tmp_path: Path) -> None:
    where, role, change = CRAFTED[name]
    source = RECORDINGS / where[0] / "1"
    recording = Recording.load(source)
    assert _judge(catalog, recording.save(tmp_path / "before"), where).outcome is Outcome.SUCCEEDED
    before = violations(tmp_path / "before", catalog)
    change(Mutation(recording, recording.connections[-1], role, Random(3)))
    result = _judge(catalog, recording.save(tmp_path / "after"), where)
    marks = {(finding.code, finding.role) for finding in result.violations} - before
    if name in MARKED:
        assert result.outcome is Outcome.SUCCEEDED
        assert role in {blamed for _, blamed in marks}  # the server may not answer a small Initial, either
    else:
        assert result.outcome in (Outcome.FAILED, Outcome.UNSUPPORTED)


def test_a_client_that_only_follows_a_key_update_is_a_note(catalog: Catalog, tmp_path: Path) -> None:
    """The public runner asks for key phase 1 from both only, which a client that follows reaches (RFC 9001 §6.2)."""
    recording = Recording.load(RECORDINGS / UPDATE[0] / "1")
    _follows_only(Mutation(recording, recording.connections[-1], CLIENT, Random(3)))
    result = _judge(catalog, recording.save(tmp_path / "job"), UPDATE)
    assert (result.outcome, result.findings) == (Outcome.SUCCEEDED, ())
    assert [(note.code, note.role) for note in result.notes] == [("server-began-update", SERVER)]
    assert result.notes[0].packets
    assert result.public is not None
    assert result.public.outcome is Outcome.SUCCEEDED
