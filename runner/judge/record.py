"""Decides whether the two captures hold all packets of a job. What the captures lack can't be judged."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from runner.decode.schema import CLIENT, SERVER, CaptureMeta, Trace
from runner.judge.ends import SIMULATOR, sending_end
from runner.model.artifacts import Evidence
from runner.model.link_record import LinkParameters
from runner.model.result import LinkTruth
from runner.model.run import CaseRecord
from runner.trace.intervals import Ints
from runner.trace.vantage import NULL, Recording, Vantage

_PACKET_BITS = 8 * 1500  # of the longest packet
_LATE = 0.025  # s: the simulator may deliver a packet so much later (runner.judge.disturbance)


def unrecorded(
    client_side: Trace,
    server_side: Trace,
    truths: tuple[LinkTruth | None, LinkTruth | None],
    record: CaseRecord,
    evidence: Evidence,
) -> str:
    """What the captures lack, or hold too often, as a sentence part. Empty when they hold every packet once.

    `truths`: the summaries of the segments next to the client and next to the server. The simulator counts every packet
    of each direction. Without its summary, as on a real link, the captures are compared with each other and with the
    received files.
    """
    recording = Recording(client_side, server_side)
    found: list[str] = []
    late = {
        CLIENT: _late(recording, CLIENT, record.link.end_to_end.return_, evidence),
        SERVER: _late(recording, SERVER, record.link.end_to_end.forward, evidence),
    }
    for end, vantage, truth in zip((CLIENT, SERVER), (recording.client, recording.server), truths, strict=True):
        assert vantage is not None
        unsent = _never_sent(recording, vantage, end)
        crossed = _Crossed.of(vantage.trace.meta)
        if truth is not None and crossed is not None:
            found += _against_the_truth(recording, vantage, truth, crossed, late)
        elif lack := _without_a_truth(recording, vantage, end, evidence):
            found.append(lack)
        if unsent and not found:
            whose = f"packets of the {vantage.role} that arrived at the other end"
            found.append(f"the capture at the {vantage.role} lacks {unsent} {whose}")
    return "; ".join(found)


@dataclass
class _Crossed:
    """The packets in one capture that crossed the link. `sent`: packets by the end that sent them. `unclear`: packets
    whose addresses don't show the end."""

    sent: dict[int, int] = field(default_factory=lambda: {CLIENT: 0, SERVER: 0})
    unclear: int = 0

    @classmethod
    def of(cls, meta: CaptureMeta) -> "_Crossed | None":
        """None when the decoder did not count the packets."""
        if not meta.ip_packets:
            return cls() if meta.decoder_version >= _COUNTS else None
        crossed = cls()
        for addresses, packets in meta.ip_packets.items():
            source, _, destination = addresses.partition(" ")
            if source in SIMULATOR or destination in SIMULATOR or destination.startswith("fe80:"):
                continue  # the simulator answers, or doesn't forward
            end = sending_end(source, destination) if addresses else None
            if end is None:
                crossed.unclear += packets
            else:
                crossed.sent[end] += packets
        return crossed


_COUNTS = 10  # version of the decoder that began to count packets by addresses


def _against_the_truth(
    recording: Recording, vantage: Vantage, truth: LinkTruth, crossed: _Crossed, late: dict[int, int]
) -> Iterator[str]:
    """Differences between a capture and the packets that entered or left the link at this end."""
    end = CLIENT if vantage is recording.client else SERVER
    ways = {CLIENT: truth.return_, SERVER: truth.forward}
    other = "server" if end == CLIENT else "client"
    for sender, way in ways.items():
        own = sender == end
        carried, held = (way.packets_in if own else way.packets_out), crossed.sent[sender]
        # Captures end before the link: its last packets, and the kernel's answers to such packets, are in no capture.
        answered = min(late[1 - sender], max(0, ways[1 - sender].packets_out - crossed.sent[1 - sender]))
        excused = crossed.unclear + (answered if own else late[sender])
        which = f"that the link took from the {vantage.role}" if own else f"that the link delivered from the {other}"
        if held + excused < carried:
            where = _where(recording, vantage, end)
            yield f"the capture at the {vantage.role} has {held} of the {carried} packets {which}{where}"
        elif held > carried and (twice := _twice(vantage, sender)):
            yield (
                f"the capture at the {vantage.role} has {held} packets of the {vantage.role if own else other}, but "
                f"the link carried {carried}: {twice} QUIC packets are recorded twice"
            )


def _without_a_truth(recording: Recording, vantage: Vantage, end: int, evidence: Evidence) -> str:
    """What a capture lacks by its own contents and by the received files."""
    for row in (row.client if end == CLIENT else row.server for row in recording.connections):
        if row is not None and not row["client_hello_count"]:
            read = vantage.packets["decrypted"][vantage.trace.packets["connection"].to_numpy() == row["connection"]]
            if read.any():
                return f"the capture at the {vantage.role} begins after the client's first packets"
    if end == SERVER or recording.server is None:
        return ""
    received = sum(file.received or 0 for file in evidence.files if file.equal)
    frames, packets = vantage.stream_frames, vantage.packets
    if not received or (packets["decrypted"] == 0).any() or vantage.trace.meta.snapped:
        return ""
    rows = frames["sender"] == SERVER
    # Bytes that were sent twice count twice: this is an upper limit of what arrived.
    arrived = int(frames["length"][rows].sum())
    if arrived >= received:
        return ""
    return (
        f"the capture at the client has {arrived} bytes of streams, but the client received files of {received} bytes"
    )


def _late(recording: Recording, sender: int, way: LinkParameters, evidence: Evidence) -> int:
    """The number of datagrams of `sender` that are not in the other capture because they may have arrived after it had
    ended. The captures end when both endpoints have ended."""
    near, far = recording.near(sender), recording.far(sender)
    if near is None or far is None:
        return 0
    ends = [record.ended for record in (evidence.client, evidence.server) if record.ended is not None]
    end = evidence.started_unix_s + max(ends, default=0.0)
    times = [vantage.datagrams["time_ns"] for vantage in recording.vantages]
    end = max([end, *(float(each.max()) / 1e9 for each in times if len(each))])
    impairments, changes = way.impairments, way.impairments.changes
    delay = max([way.delay, *(change.delay for change in changes)])
    rate = min([way.data_rate, *(change.data_rate for change in changes if change.data_rate)])
    transit = delay + (way.queue_packets + 1) * _PACKET_BITS / rate + impairments.jitter + impairments.reorder_delay
    late = near.datagrams["time_ns"] / 1e9 + transit + _LATE > end
    late[near.packets["datagram"][(near.packet_key != NULL) & np.isin(near.packet_key, far.packet_key)]] = False
    return int((late & (near.datagrams["sender"] == sender)).sum())


def _keys(vantage: Vantage, sender: int) -> Ints:
    """The keys of the packets of `sender` that could be read, in the order of the capture."""
    packets = vantage.packets
    keys: Ints = vantage.packet_key[(packets["sender"] == sender) & (vantage.packet_key != NULL)]
    return keys


def _never_sent(recording: Recording, vantage: Vantage, end: int) -> int:
    """The number of packets of this end that are only in the other capture."""
    far = recording.far(end)
    if far is None:
        return 0
    return len(np.setdiff1d(_keys(far, end), _keys(vantage, end)))


def _twice(vantage: Vantage, sender: int) -> int:
    """The number of packets of `sender` that the capture contains again."""
    keys = _keys(vantage, sender)
    return len(keys) - len(np.unique(keys))


def _where(recording: Recording, vantage: Vantage, end: int) -> str:
    """Which part of a capture is missing, from the packets in the other capture; empty when they don't show it."""
    far = recording.far(end)
    if far is None:
        return ""
    expected, held = _keys(far, end), _keys(vantage, end)
    present = np.isin(expected, held)
    if present.all():
        return ""
    if not present.any():
        return ": all packets that the other capture has"
    first, last = np.flatnonzero(present)[[0, -1]]
    missing = np.flatnonzero(~present)
    if missing[-1] < first:
        return ": its beginning is missing"
    return ": its end is missing" if missing[0] > last else ": packets within it are missing"
