"""A violation explains a close only if the peer had read it: it was not lost, late, damaged, or without keys."""

from functools import partial
from pathlib import Path

import pytest

from lab.mutate.recording import CLIENT, SERVER
from lab.mutate.wire import F, Kind, frame, stream
from runner.model.result import Outcome
from runner.plan.catalog import Catalog
from runner.tests.judge.stories import HANDSHAKE, NOBODY, SIZES, TRANSFER, Stories, Story, story_of


@pytest.mark.parametrize("fate", ["arrives", "is late", "is lost"])
def test_a_violation_that_the_peer_never_saw_explains_no_close(fate: str, catalog: Catalog, tmp_path: Path) -> None:
    story = Story.of(TRANSFER)
    broken, packet = story.middle(SERVER)
    packet.frames = [frame(F.RESET_STREAM, stream=4003, code=0, final=0)]
    packet.changed = True
    arrival = broken.seen[CLIENT]
    story.stop(SERVER, broken.sent_ns)
    story.closes(CLIENT, arrival.time_ns, 0x04)
    if fate == "is lost":
        story.recording.records[CLIENT].remove(broken.seen.pop(CLIENT))
    elif fate == "is late":
        arrival.time_ns += 10**8
    story.ends()
    result = story.judge(catalog, tmp_path / "job", "transfer", SIZES)
    assert (result.outcome, result.culprit) == (Outcome.FAILED, SERVER if fate == "arrives" else "")


UNREAD: Stories = {}
_unread = partial(story_of, UNREAD)


def _lost_then_repeated(story: Story, *, in_time: bool) -> None:
    broken, packet = story.middle(SERVER)
    arrival = broken.seen[CLIENT].time_ns
    for datagram, other in story.mutation(CLIENT).packets(Kind.ONE_RTT):
        if datagram.sent_ns > arrival:
            other.frames, other.changed = [frame(F.PING)], True
    sent = [each for each in story.mutation(SERVER).packets(Kind.ONE_RTT) if each[0].arrived]
    later = [each for each in sent if each[0].sent_ns > broken.sent_ns]
    others = later[2][0].seen[CLIENT].time_ns
    close = next(each.sent_ns for each in story.recording.datagrams if each.sender == CLIENT and each.sent_ns > others)
    again, repeated = [each for each in later if each[0].sent_ns < close][-1]
    assert arrival < others < close < again.seen[CLIENT].time_ns
    for each in (packet, repeated):
        each.frames, each.changed = [frame(F.RESET_STREAM, stream=4003, code=0, final=0)], True
    story.recording.lose(broken)
    story.stop(SERVER, again.sent_ns)
    story.closes(CLIENT, again.seen[CLIENT].time_ns if in_time else others, 0x04)
    story.ends()


@_unread("lost, and not yet repeated", TRANSFER, "transfer", SIZES, NOBODY)
def _not_repeated(story: Story) -> None:
    _lost_then_repeated(story, in_time=False)


@_unread("lost, and repeated in time", TRANSFER, "transfer", SIZES, SERVER)
def _repeated(story: Story) -> None:
    _lost_then_repeated(story, in_time=True)


@_unread("the second of two packets that contradict each other is lost", TRANSFER, "transfer", SIZES, NOBODY)
def _contradiction(story: Story) -> None:
    broken, packet = story.middle(SERVER)
    at = broken.seen[CLIENT].time_ns
    packet.frames, packet.changed = [stream(8, 0, b"other bytes")], True
    story.recording.lose(broken)
    story.stop(SERVER, broken.sent_ns)
    story.closes(CLIENT, at, 0x0A)
    story.ends()


@_unread("the link damages the second packet of a datagram", HANDSHAKE, "handshake", (), NOBODY)
def _coalesced(story: Story) -> None:
    datagram, packet = story.mutation(SERVER).packets(Kind.HANDSHAKE)[0]
    assert datagram.packets[1] is packet
    packet.add(frame(F.HANDSHAKE_DONE))
    record = datagram.seen.pop(CLIENT)
    record.carry(datagram.encode()[:-1] + bytes([datagram.encode()[-1] ^ 1]))
    story.stop(SERVER, datagram.sent_ns)
    story.closes(CLIENT, record.time_ns, 0x0A, kind=Kind.INITIAL)
    story.ends()


@_unread("before the keys", HANDSHAKE, "handshake", (), NOBODY)
def _before_keys(story: Story) -> None:
    """The server reads no 1-RTT packet before the client's Finished arrives (RFC 9001 §5.7)."""
    finished = story.mutation(CLIENT).packets(Kind.HANDSHAKE)[0][0]
    datagram, packet = story.mutation(CLIENT).packets(Kind.ONE_RTT)[0]
    packet.add(frame(F.HANDSHAKE_DONE))
    story.recording.lose(finished)
    story.stop(CLIENT, datagram.sent_ns)
    story.closes(SERVER, datagram.seen[SERVER].time_ns, 0x0A)
    story.ends()


@_unread("in rejected 0-RTT packets", "bad/refuses-early-data", "zerortt", (), NOBODY)
def _rejected(story: Story) -> None:
    datagram, packet = story.mutation(CLIENT).packets(Kind.ZERO_RTT)[0]
    packet.add(frame(F.HANDSHAKE_DONE))
    story.closes(SERVER, datagram.seen[SERVER].time_ns, 0x0A)
    story.ends()


@pytest.mark.parametrize("name", UNREAD)
def test_only_what_the_peer_has_read_explains_its_close(name: str, catalog: Catalog, tmp_path: Path) -> None:
    path, case, sizes, culprit, tell = UNREAD[name]
    story = Story.of(path)
    tell(story)
    result = story.judge(catalog, tmp_path / "job", case, sizes)
    told = [(finding.code, finding.role, finding.actual) for finding in (*result.findings, *result.violations)]
    assert (result.outcome, result.culprit) == (Outcome.FAILED, culprit), told
