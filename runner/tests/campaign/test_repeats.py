"""Two runs of one job: equal hashes are enough; other ones lead to the first packet that differs."""

import hashlib
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from runner.campaign.campaign import Repeat, compare_job
from runner.model.result import Artifacts, GuestEvidence
from runner.model.run import Job
from runner.store.runs import load_evidence, save_evidence

JOB = Job(server="aioquic", client="aioquic", case="handshake", iteration=1)
Change = Callable[[list[bytes]], None]


def split_capture(data: bytes) -> tuple[bytes, list[bytes]]:
    """The file's header, and each packet with its own."""
    position, packets = 24, []
    while position < len(data):
        held = struct.unpack_from("<I", data, position + 8)[0]
        packets.append(data[position : position + 16 + held])
        position += 16 + held
    return data[:24], packets


def with_hashes(artifacts: Artifacts) -> Artifacts:
    evidence = load_evidence(artifacts)
    assert evidence is not None
    sides = {"client": artifacts.client_capture, "server": artifacts.server_capture}
    hashes = {side: hashlib.sha256(path.read_bytes()).hexdigest() for side, path in sides.items()}
    guest = GuestEvidence(kernel="7", epoch_unix_s=0, seed=1, captures=hashes)
    save_evidence(artifacts, replace(evidence, guest=guest))
    return artifacts


@pytest.fixture
def repeat(recorded: Callable[[str], Artifacts]) -> Callable[[Change], Repeat]:
    """Compares a recording with a copy whose server-side capture is changed."""
    before = with_hashes(recorded("aioquic_aioquic/handshake"))

    def compare(change: Change) -> Repeat:
        other = before.folder.with_name("again")
        shutil.copytree(before.folder, other)
        after = Artifacts(other)
        header, packets = split_capture(after.server_capture.read_bytes())
        change(packets)
        after.server_capture.write_bytes(header + b"".join(packets))
        return compare_job(JOB, before, with_hashes(after))

    return compare


def test_equal_captures_are_the_same(repeat: Callable[[Change], Repeat]) -> None:
    outcome = repeat(lambda _: None)
    assert outcome.same is True
    assert outcome.difference is None


def test_a_packet_that_is_late_is_named_with_how_late(repeat: Callable[[Change], Repeat]) -> None:
    def delay(packets: list[bytes]) -> None:
        fraction = struct.unpack_from("<I", packets[3], 4)[0]
        packets[3] = packets[3][:4] + struct.pack("<I", fraction + 7) + packets[3][8:]

    difference = repeat(delay).difference
    assert difference is not None
    assert (difference.side, difference.number) == ("server", 4)
    assert difference.what.startswith("the same bytes") and "later in the second run" in difference.what


@pytest.mark.parametrize(
    ("at", "place"), [(20, "byte 6 of the IP header"), (14 + 20 + 8 + 5, "byte 5 of the UDP payload")]
)
def test_a_byte_that_differs_is_named_by_its_place(repeat: Callable[[Change], Repeat], at: int, place: str) -> None:
    def flip(packets: list[bytes]) -> None:
        number = next(i for i, packet in enumerate(packets) if packet[16 + 12 : 16 + 14] == b"\x08\x00")
        changed = bytearray(packets[number])
        changed[16 + at] ^= 1
        packets[number] = bytes(changed)

    difference = repeat(flip).difference
    assert difference is not None
    assert place in difference.what


def test_a_packet_that_one_run_alone_has(repeat: Callable[[Change], Repeat]) -> None:
    difference = repeat(lambda packets: packets.__delitem__(-1)).difference
    assert difference is not None
    assert difference.what == "only the first run has this packet"


def test_a_job_without_hashes_is_neither(recorded: Callable[[str], Artifacts]) -> None:
    artifacts = recorded("aioquic_aioquic/handshake")
    assert compare_job(JOB, artifacts, artifacts).same is None
