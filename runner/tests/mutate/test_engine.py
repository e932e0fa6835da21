"""Recordings that are opened and sealed again are the same, byte for byte; edits move what depends on them."""

import gzip
from pathlib import Path
from random import Random

import pytest

from lab.mutate.mutation import Mutation
from lab.mutate.recording import CLIENT, ROLES, SERVER, Recording
from lab.mutate.wire import F, Kind, P, frame, messages
from runner.tests.records import RECORDINGS

GOOD = sorted(folder for folder in RECORDINGS.glob("*_*/*/1"))
# Datagrams that the link damaged, and packets of versions that nobody knows, can't be opened.
SEALED = {"transfercorruption": 6, "handshakecorruption": 21, "versionnegotiation": 1}


def _capture(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def _mutation(name: str, role: str) -> Mutation:
    recording = Recording.load(RECORDINGS / name / "1")
    return Mutation(recording, recording.connections[0], role, Random(1))


@pytest.mark.parametrize("folder", GOOD, ids=lambda folder: f"{folder.parts[-3]}/{folder.parts[-2]}")
def test_every_packet_opens_and_is_sealed_as_it_was(folder: Path, tmp_path: Path) -> None:
    recording = Recording.load(folder)
    packets = [packet for datagram in recording.datagrams for packet in datagram.packets]
    plain = (Kind.RETRY, Kind.VERSION_NEGOTIATION)
    shut = [packet for packet in packets if not packet.opened and packet.kind not in plain]
    assert len(shut) == SEALED.get(folder.parts[-2], 0)
    for packet in packets:
        packet.changed = True
    copy = recording.save(tmp_path / "copy")
    for name in ("sim/left.pcap", "sim/right.pcap"):
        assert _capture(copy / name) == _capture(folder / name)


@pytest.mark.parametrize("role", ROLES)
def test_an_inserted_packet_moves_later_numbers_and_their_acknowledgments(role: str, tmp_path: Path) -> None:
    mutation = _mutation("quic-go_quic-go/transfer", role)
    before = [packet.number for _, packet in mutation.packets(Kind.ONE_RTT)]
    _, new = mutation.send(frame(F.PING))
    folder = mutation.recording.save(tmp_path / "edited")
    again = Recording.load(folder)
    sent = [packet for _, packet in again.packets(role, Kind.ONE_RTT)]
    assert [packet.number for packet in sent] == [*before, before[-1] + 1]
    assert next(packet for packet in sent if packet.number == new.number).frames[0].type == F.PING
    peer = SERVER if role == CLIENT else CLIENT
    ranges = [each for _, _, ack in again.frames(F.ACK, F.ACK_ECN, sender=peer) for each in ack.ranges]
    assert any(low <= new.number <= high for low, high in ranges)


@pytest.mark.parametrize("role", ROLES)
def test_a_parameter_moves_what_follows_it(role: str, tmp_path: Path) -> None:
    mutation = _mutation("quinn_quinn/handshake", role)
    old = mutation.connection.crypto_stream(role, "handshake")
    token = bytes(40)
    mutation.set_parameter(0x7777, token)
    again = Recording.load(mutation.recording.save(tmp_path / "edited"))
    connection = again.connections[0]
    changed = Mutation(again, connection, role, Random(1))
    assert changed.parameters()[0x7777] == token
    assert messages(connection.crypto_stream(role, "handshake"))[1] == b""
    if role == SERVER:
        assert connection.crypto_stream(role, "handshake")[-200:] == old[-200:]
    assert P.INITIAL_SCID in changed.parameters()
    sizes = [datagram.size for datagram, _ in changed.packets(Kind.INITIAL, sender=CLIENT)]
    assert min(sizes) >= 1200
