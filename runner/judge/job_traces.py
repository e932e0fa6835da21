"""Decodes both captures of a job, establishes facts and numbers, finds broken rules of RFCs, and decides whether the
evidence suffices."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc

from runner.decode.capture import LATE_RECORD_NS
from runner.decode.columns import CLIENT, FRAGMENTS, NULL, SERVER, CaptureMeta, Trace
from runner.decode.crypto_messages import Message
from runner.decode.tables import cached_decode, job_checks, load_tables, on_server_clock
from runner.decode.tcp.tcp import cached_decode_tcp
from runner.decode.wire import NAMES_OF_FRAMES
from runner.diagnose.explain import Explanation, explain, marks, window_of
from runner.diagnose.path import link_events
from runner.errors import CaptureError
from runner.judge.readback import SIMULATOR, sending_end
from runner.judge.rules import handshake_rules, http3_rules, key_rules, packet_rules, path_rules, stream_rules
from runner.judge.rules.side import EARLY, HANDSHAKE, ONE_RTT, Broken, Side
from runner.model.facts import PacketPlace, TraceFacts, UnreadPackets
from runner.model.link import LinkParameters
from runner.model.result import (
    Artifacts,
    Evidence,
    Finding,
    Invariant,
    LinkTruth,
    ProtectedPackets,
    Sample,
)
from runner.model.rules import BY_ID
from runner.model.run import CaseRecord
from runner.model.stack import HTTP09, Role
from runner.store import runs
from runner.trace import measure
from runner.trace.establish import facts
from runner.trace.measure import series
from runner.trace.recording import ROLES, Ints, Recording, Scope, Vantage
from runner.trace.streams import Transfer
from runner.units import format_count

# Decides whether the evidence suffices for a verdict. An unreadable packet proves nothing for or against an
# endpoint.

# A secret that decrypts some packets is the right secret. The other packets are damaged or not authentic, and the peer
# can't decrypt them either (RFC 9001 §5.2, §9.5). When more packets than these limits can't be read, and the peer
# acknowledges packets that were not read, the decoder itself may be wrong.
_DAMAGED_SHARE, _DAMAGED = 0.1, 10
_SHOWN = 8  # connections that a result lists
_RANDOM = 8  # bytes of a client random that a finding shows


def gaps(facts: TraceFacts, *, may_miss: frozenset[str], corrupts: bool) -> tuple[UnreadPackets, ...]:
    """The groups of unread packets that the case needs.

    `may_miss`: types of packets that the case doesn't need. `corrupts`: the link changes packets on purpose, so that
    only packets in the sender's own capture must be readable.
    """
    return tuple(group for group in facts.unread if group.type not in may_miss and _matters(group, corrupts=corrupts))


def _matters(group: UnreadPackets, *, corrupts: bool) -> bool:
    if corrupts and not group.near:
        return group.none_read and group.connection is not None
    if not group.may_be_authentic:
        return False
    if group.none_read and group.connection is not None:
        return True
    return group.unread > max(_DAMAGED, _DAMAGED_SHARE * group.packets)


def missing_secrets(facts: TraceFacts, missing: Iterable[UnreadPackets], *, key_logs: bool) -> tuple[Finding, ...]:
    """Findings that name the missing secrets of each connection, for the first eight connections. No stack is blamed.
    `key_logs`: an endpoint wrote a key log that is not empty."""
    groups: dict[int | None, list[UnreadPackets]] = {}
    for group in missing:
        groups.setdefault(group.connection, []).append(group)
    findings = [_finding(facts, each, key_logs=key_logs) for each in tuple(groups.values())[:_SHOWN]]
    if (rest := len(groups) - _SHOWN) > 0:
        last, more = findings[-1], f"the same in {format_count(rest, 'more connection')}"
        findings.append(Finding(code=last.code, requirement=last.requirement, expected=last.expected, actual=more))
    return tuple(findings)


def without_keys(facts: TraceFacts, *, key_logs: bool) -> Finding:
    """The note that a job was judged although no key log opened any of its packets."""
    first, *more = missing_secrets(facts, facts.unread, key_logs=key_logs)
    return replace(
        first,
        code="judged-without-keys",
        requirement="Without secrets, a verdict rests on files, exit codes, long headers, Initial packets, ECN marks "
        "and sizes. Rules about the content of other packets are not checked.",
        actual="; ".join(finding.actual for finding in (first, *more)),
    )


def _finding(facts: TraceFacts, groups: list[UnreadPackets], *, key_logs: bool) -> Finding:
    return Finding(
        code="secrets-missing" if key_logs else "no-key-log",
        requirement="Endpoints write their secrets to SSLKEYLOGFILE, because verdicts come from decrypted packets.",
        expected="; ".join(sorted({_expected(group) for group in groups}))
        if key_logs
        else "a key log from the client or the server",
        actual=f"{_name(facts, groups[0])}: {'; '.join(_actual(group) for group in groups)}",
        section="RFC 9001 §5, draft-ietf-tls-keylogfile §2",
    ).proven_by(*(place for group in groups for place in group.places))


def _name(facts: TraceFacts, group: UnreadPackets) -> str:
    if group.connection is None:
        return "packets of no known connection"
    random = f"client random {group.client_random.hex()[: 2 * _RANDOM]}…" if group.client_random else "no ClientHello"
    return f"connection {group.connection + 1} of {len(facts.connections)} ({random})"


def _expected(group: UnreadPackets) -> str:
    if group.type == "initial":
        return "the client's first Initial packet, whose connection ID gives the Initial keys"
    if not group.secret:
        return f"keys for {_TYPES[group.type]} packets"
    return f"{group.secret} in a key log"


_TYPES = {"initial": "Initial", "0rtt": "0-RTT", "handshake": "Handshake", "1rtt": "1-RTT"}


def _actual(group: UnreadPackets) -> str:
    """A part of a sentence, such as `120 of 120 1-RTT packets of the server can't be read, SERVER_TRAFFIC_SECRET_0 is
    in no key log`."""
    whose = f" of the {group.sender}" if group.sender else ""
    packets = f"{group.unread} of {format_count(group.packets, f'{_TYPES[group.type]} packet')}{whose} can't be read"
    if not group.secret or not group.none_read:
        return packets
    if group.secret_logged is None:
        return f"{packets} without {group.secret}"
    why = "in a key log does not decrypt them" if group.secret_logged else "is in no key log"
    return f"{packets}, {group.secret} {why}"


def unread_types(missing: Iterable[UnreadPackets]) -> frozenset[str]:
    """The packet types of these groups."""
    return frozenset(group.type for group in missing)


def misaddressed_datagrams(client_side: Trace, server_side: Trace, truth: LinkTruth | None) -> dict[str, int]:
    """By role, the number of datagrams in the sender's own capture that did not enter the link: their frames have a MAC
    address that the link does not know. Kernel drops at the simulator don't count."""
    if truth is None:
        return {}
    recording = Recording(client_side, server_side)
    misaddressed = {}
    for sender, link in ((CLIENT, truth.return_), (SERVER, truth.forward)):
        if (near := recording.near(sender)) is not None:
            sent = int((near.datagrams["sender"] == sender).sum())
            misaddressed[near.role] = max(0, sent - link.packets_in - truth.socket_drops)
    return misaddressed


def fragmented_packets(client_side: Trace, server_side: Trace) -> dict[str, int]:
    """By role, the number of IP fragments of the sender in its peer's capture. QUIC forbids them (RFC 9000 §14). The
    decoder doesn't read them, so it is unknown what the peer received."""
    fragments: dict[str, int] = {}
    for role, far, peer in ((Role.CLIENT, server_side, SERVER), (Role.SERVER, client_side, CLIENT)):
        sources = far.datagrams["src"].filter(pc.equal(far.datagrams["sender"], peer))
        own = set(pc.unique(sources).to_pylist())
        if own:
            fragments[role] = sum(count for source, count in far.meta.fragment_sources.items() if source not in own)
    return fragments


# Decides whether the two captures hold all packets of a job. What the captures lack can't be judged.

_PACKET_BITS = 8 * 1500  # of the longest packet
_LATE = 0.025  # s: the simulator may deliver a packet so much later (runner.judge.execution)


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
    client, server = recording.client, recording.server
    assert client is not None
    assert server is not None
    found: list[str] = []
    ways = record.link.end_to_end
    late = {
        CLIENT: _late(client, server, CLIENT, ways.return_, evidence),
        SERVER: _late(server, client, SERVER, ways.forward, evidence),
    }
    for end, vantage, far, truth in ((CLIENT, client, server, truths[0]), (SERVER, server, client, truths[1])):
        unsent = len(np.setdiff1d(_keys(far, end), _keys(vantage, end)))  # packets of this end, only seen at the other
        crossed = _Crossed.of(vantage.trace.meta)
        if truth is not None and crossed is not None:
            found += _against_the_truth(vantage, far, truth, crossed, late)
        elif lack := _without_a_truth(recording, vantage, far, end, evidence):
            found.append(lack)
        if (back := vantage.trace.meta.backwards_ns) > LATE_RECORD_NS:
            found.append(f"the clock of the capture at the {vantage.role} was set back by {back / 1e9:.1f} s")
        if unsent and not found:
            whose = f"packets of the {vantage.role} that arrived at the other end"
            found.append(f"the capture at the {vantage.role} lacks {unsent} {whose}")
    return "; ".join(found)


def deaf_role(client_side: Trace, server_side: Trace, truth: LinkTruth | None) -> str:
    """The role to which the link delivered packets, but whose capture has no packet of its peer. Empty when there is no
    such role."""
    for end, trace in ((CLIENT, client_side), (SERVER, server_side)):
        crossed = _Crossed.of(trace.meta)
        delivered = 0 if truth is None else (truth.forward if end == CLIENT else truth.return_).packets_out
        if crossed is not None and delivered and not (crossed.sent[1 - end] or crossed.unclear):
            return Role.CLIENT.value if end == CLIENT else Role.SERVER.value
    return ""


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
            counted = meta.decoder_version >= _COUNTS and meta.link_type in ("", "ETHERNET")
            return cls() if counted else None
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
    vantage: Vantage, far: Vantage, truth: LinkTruth, crossed: _Crossed, late: dict[int, int]
) -> Iterator[str]:
    """Differences between a capture and the packets that entered or left the link at this end."""
    end = CLIENT if vantage.role == ROLES[CLIENT] else SERVER
    ways = {CLIENT: truth.return_, SERVER: truth.forward}
    other = "server" if end == CLIENT else "client"
    for sender, way in ways.items():
        own, keys = sender == end, _keys(vantage, sender)
        twice = len(keys) - len(np.unique(keys))  # packets that the capture contains again
        carried, held = (way.packets_in if own else way.packets_out), crossed.sent[sender]
        # Captures end before the link: its last packets, and the kernel's answers to such packets, are in no capture.
        answered = min(late[1 - sender], max(0, ways[1 - sender].packets_out - crossed.sent[1 - sender]))
        excused = crossed.unclear + (answered if own else late[sender])
        which = f"that the link took from the {vantage.role}" if own else f"that the link delivered from the {other}"
        if held + excused < carried:
            where = _where(vantage, far, end)
            yield f"the capture at the {vantage.role} has {held} of {format_count(carried, 'packet')} {which}{where}"
        elif held > carried and twice:
            yield (
                f"the capture at the {vantage.role} has {format_count(held, 'packet')} of the "
                f"{vantage.role if own else other}, but the link carried {carried}: "
                f"{format_count(twice, 'QUIC packet')} recorded twice"
            )


def _without_a_truth(recording: Recording, vantage: Vantage, far: Vantage, end: int, evidence: Evidence) -> str:
    """What a capture lacks, or holds twice, by its own contents, by the other capture, and by the received files."""
    if twice := _recorded_twice(vantage, far, end):
        whose = f"{format_count(twice, 'QUIC packet')} of the {vantage.role} twice"
        return f"the capture at the {vantage.role} has {whose}, which arrived once"
    for row in (row.client if end == CLIENT else row.server for row in recording.connections):
        if row is not None and not row["client_hello_count"]:
            mine = vantage.trace.packets["connection"].to_numpy() == row["connection"]
            # A probe of an unknown version, by a scanner or our own, gets Version Negotiation and has no ClientHello.
            mine &= ~vantage.packets.named("type", "version_negotiation")
            if vantage.packets["decrypted"][mine].any():
                return f"the capture at the {vantage.role} begins after the client's first packets"
    if end == SERVER:
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
    return f"the capture at the client has {arrived} B of streams, but the client received files of {received} B"


def _late(near: Vantage, far: Vantage, sender: int, way: LinkParameters, evidence: Evidence) -> int:
    """The number of packets of `sender` that are not in the capture `far` because they may have arrived after it had
    ended. The captures end when both endpoints have ended."""
    ends = [record.ended for record in (evidence.client, evidence.server) if record.ended is not None]
    end = evidence.started_unix_s + max(ends, default=0.0)
    times = [vantage.datagrams["time_ns"] for vantage in (near, far)]
    end = max([end, *(float(each.max()) / 1e9 for each in times if len(each))])
    impairments, changes = way.impairments, way.impairments.changes
    delay = max([way.delay, *(change.delay for change in changes)])
    rate = min([way.data_rate, *(change.data_rate for change in changes if change.data_rate)])
    pause = max((after.time - change.time for change, after in pairwise(changes) if not change.data_rate), default=0.0)
    grant = impairments.dama.grant_delay + 2 * impairments.dama.superframe if impairments.dama else 0.0
    transit = delay + pause + grant + (way.queue_packets + 1) * _PACKET_BITS / rate
    transit += impairments.jitter + impairments.reorder_delay
    late = near.datagrams["time_ns"] / 1e9 + transit + _LATE > end
    own = near.datagrams["sender"] == sender
    # The kernel of an endpoint that has ended answers its peer's last datagrams with ICMP: IP packets without a row.
    crossed = _Crossed.of(near.trace.meta)
    answers = min(int((late & ~own).sum()), max(0, crossed.sent[sender] - int(own.sum()))) if crossed is not None else 0
    late[near.packets["datagram"][(near.packet_key != NULL) & np.isin(near.packet_key, far.packet_key)]] = False
    return answers + int((late & own).sum())


def _keys(vantage: Vantage, sender: int) -> Ints:
    """The keys of the packets of `sender` that could be read, in the order of the capture."""
    keys: Ints = vantage.packet_key[_rows(vantage, sender)]
    return keys


def _rows(vantage: Vantage, sender: int) -> Ints:
    return np.flatnonzero((vantage.packets["sender"] == sender) & (vantage.packet_key != NULL))


def _recorded_twice(vantage: Vantage, far: Vantage, end: int) -> int:
    """The number of packets of this end whose capture has two records of the same size where the other capture has one.
    An endpoint that uses a packet number twice sends two packets, and both arrive."""
    keys, sizes = _keys(vantage, end), vantage.packets["length"][_rows(vantage, end)]
    known, first, place, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    same = np.bincount(place, weights=sizes == sizes[first][place], minlength=len(known)) == counts
    arrived, times = np.unique(_keys(far, end), return_counts=True)
    return int(np.isin(known[(counts > 1) & same], arrived[times == 1]).sum())


def _where(vantage: Vantage, far: Vantage, end: int) -> str:
    """Which part of a capture is missing, from the packets in the other capture; empty when they don't show it."""
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


# Decodes both captures of a job, and establishes facts and numbers from both traces together.


@dataclass(frozen=True, kw_only=True)
class JobTraces:
    """The contents of both captures of a job, as far as they can be read."""

    facts: TraceFacts | None = None
    """None: a capture is missing or broken; `problem` names it."""
    sample: Sample | None = None
    invariants: tuple[Invariant, ...] = ()
    violations: tuple[Finding, ...] = ()
    explanation: Explanation = field(default_factory=Explanation)
    problem: str = ""
    unrecorded: str = ""
    """What the captures lack, or hold too often, as a sentence part; empty when they hold every packet once."""
    deaf: str = ""
    """See `deaf_role`. Empty, too, when boxes are between captures and link."""
    misaddressed: Mapping[str, int] = field(default_factory=dict)
    """By role, the number of datagrams that the endpoint sent to a MAC address that the link does not know."""
    foreign: tuple[Finding, ...] = ()
    """Notes about the UDP packets in each capture that belong to no QUIC connection."""
    tcp: bool = False
    """True for a job over TCP, where most packets have no protection."""

    @property
    def protected(self) -> ProtectedPackets | None:
        """The number of protected packets, and how many of them could not be read. None without facts, and for TCP when
        every packet could be read."""
        if self.facts is None or (self.tcp and not self.facts.unread_packets):
            return None
        return ProtectedPackets(packets=self.facts.protected_packets, unread=self.facts.unread_packets)

    @property
    def missing(self) -> Finding | None:
        """The finding when there are no packets to judge; None otherwise. The finding blames no stack."""
        if self.facts is None:
            return Finding(
                code="no-capture",
                requirement="Verdicts come from packets.",
                expected="captures at the client and at the server",
                actual=self.problem,
            )
        if not self.facts.connections:
            return Finding(
                code="no-connection",
                requirement="Verdicts come from packets.",
                expected="a connection in the captures",
                actual="no connection could be read",
            )
        return None


def read_traces(
    artifacts: Artifacts,
    record: CaseRecord,
    evidence: Evidence,
    truth: LinkTruth | None,
    ground: LinkTruth | None,
    *,
    tcp: bool,
) -> JobTraces:
    """Decode both captures, establish facts, measure, diagnose, and write `series.json`."""
    try:
        client_side, server_side = _decode(artifacts, evidence, tcp=tcp)
    except CaptureError as error:
        return JobTraces(problem=str(error))
    if client_side is None or server_side is None:
        return JobTraces(problem="a capture is missing")
    via = evidence.via
    if split := via is not None and bool(via.splits if tcp else via.splits_quic):
        server_side = client_side  # the proxy splits the connection; the judge reads only the connection of the client
    elif evidence.real_link is not None and evidence.real_link.clock is not None:
        client_side = on_server_clock(client_side, evidence.real_link.clock)
    transfer = Transfer(client_side, server_side, upload=record.upload)
    trace_facts = facts(client_side, server_side, transfer=transfer)
    sample = measure.sample(
        transfer, trace_facts, file_sizes=record.file_sizes, forward=record.forward, return_=record.return_
    )
    explanation = Explanation()
    if split:
        sample = sample.from_client_alone
    else:
        seen = truth.mirrored if record.upload and truth is not None else truth
        events = link_events(artifacts.packet_log, truth, upload=record.upload)
        explanation = explain(transfer, trace_facts, sample, record.satellite, truth=seen, events=events, tcp=tcp)
    plots = series(
        transfer,
        trace_facts,
        sample,
        file_sizes=record.file_sizes,
        forward=record.forward,
        return_=record.return_,
    )
    window = window_of(artifacts.folder / record.sender / "qlog", transfer.recording.server)
    document = plots | marks(explanation, origin_ns=int(plots["origin_unix_ns"]), window=window)
    runs.write_atomically(artifacts.series, json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
    # With several segments, the truth of one segment doesn't show which packets arrived at the other end.
    whole_way = not evidence.boxes and not artifacts.ground_truth.is_file()
    # Boxes are between the captures and the link, so that the link's truth counts other packets.
    truths = (None, None) if evidence.boxes else (truth, truth if whole_way else ground)
    lack = "" if split else unrecorded(client_side, server_side, truths, record, evidence)
    misaddressed = misaddressed_datagrams(client_side, server_side, truth) if whole_way else {}
    fragments = fragmented_packets(client_side, server_side)
    sides = [] if lack or tcp else _sides(client_side, server_side)
    broken_rules = _broken_rules(sides)
    violations = _as_findings(broken_rules)
    # What the peer of an endpoint that sends fragments received is unknown, so the peer is not accused.
    innocent = {role for role in Role if any(count for sender, count in fragments.items() if sender != role)}
    violations = tuple(violation for violation in violations if violation.role not in innocent)
    if split:  # the client's peer is the proxy, not the server
        violations = tuple(violation for violation in violations if violation.role == Role.CLIENT)
    else:
        trace_facts = replace(
            trace_facts, noticed=_noticed(broken_rules), unfounded=frozenset(_unfounded(sides, broken_rules))
        )
    return JobTraces(
        facts=trace_facts,
        sample=sample,
        invariants=(
            *_invariants(client_side, server_side, trace_facts, record),
            *_forbidden(truth, fragments),
        ),
        violations=violations,
        explanation=explanation,
        unrecorded=lack,
        deaf=deaf_role(client_side, server_side, truth) if lack and whole_way else "",
        misaddressed=misaddressed,
        foreign=() if tcp else tuple(_foreign((client_side,) if split else (client_side, server_side))),
        tcp=tcp,
    )


def _foreign(traces: Iterable[Trace]) -> Iterator[Finding]:
    """A note for each capture with UDP packets that belong to no QUIC connection. They change no verdict. `traces`: at
    the client, and at the server unless a proxy splits the connection."""
    for role, trace in zip(Role, traces, strict=False):
        skipped = {why: count for why, count in trace.meta.skipped_udp.items() if why != FRAGMENTS}
        if skipped:
            yield Finding(
                code="foreign-packets",
                requirement="A verdict comes from the packets of QUIC connections.",
                expected="UDP packets with connection IDs of the connections, or on flows that begin with long headers",
                actual=f"{sum(skipped.values())} other UDP packets in the capture at the {role}: "
                + "; ".join(f"{count} {why}" for why, count in sorted(skipped.items())),
                section="RFC 9000 §5.2",
            )


def corrupts(record: CaseRecord) -> bool:
    """Whether the link of the case changes packets on purpose."""
    return any(direction.impairments.corruption for direction in (record.forward, record.return_))


def _forbidden(truth: LinkTruth | None, fragments: Mapping[str, int]) -> Iterator[Invariant]:
    """A broken invariant for each endpoint that sent packets with an address of the other end, which the link drops, or
    IP fragments. The dropped packets are in no capture and change no verdict. `fragments`: by sender."""
    spoofed = {} if truth is None else {"client": truth.spoofed_client, "server": truth.spoofed_server}
    for name, counts, text in (
        ("spoofed_packets", spoofed, "the link dropped {} packets from the {} with an address of the other end"),
        ("fragmented_packets", fragments, "{} IP fragments of the {} arrived, which QUIC forbids (RFC 9000 §14)"),
    ):
        for role, count in counts.items():
            if count:
                actual = text.format(count, role)
                yield Invariant(name=f"{role}_side.{name}", holds=False, expected="0", actual=actual)


def _invariants(
    client_side: Trace, server_side: Trace, trace_facts: TraceFacts, record: CaseRecord
) -> tuple[Invariant, ...]:
    """The checks of each trace, and of both traces together. Sizes are compared only for HTTP/0.9, where the response
    data is exactly the file.

    When the link corrupts packets, unreadable packets prove nothing.
    """
    plain = all(connection.alpn == HTTP09 for connection in trace_facts.connections)
    checks = [(f"client_side.{check.name}", check) for check in client_side.checks]
    checks += [(f"server_side.{check.name}", check) for check in server_side.checks]
    both = job_checks(client_side, server_side, record.file_sizes if plain else None)
    checks += [(check.name, check) for check in both]
    return tuple(
        Invariant(
            name=name,
            holds=None if corrupts(record) and check.name == "undecrypted_packets" else check.holds,
            expected=str(check.expected),
            actual=str(check.actual),
        )
        for name, check in checks
    )


def _decode(artifacts: Artifacts, evidence: Evidence, *, tcp: bool) -> Sequence[Trace | None]:
    """The traces of client and server. A capture that was not kept is replaced by its tables; None without both. TCP
    needs both captures or both tables."""
    captures = artifacts.client_capture, artifacts.server_capture
    folders = artifacts.client_tables, artifacts.server_tables
    logs, drops = artifacts.key_logs, evidence.capture_drops
    kept = [capture.is_file() for capture in captures]
    if tcp and all(kept):
        return cached_decode_tcp(captures, logs, folders, kernel_drops=drops)
    traces: list[Trace | None] = []
    for capture, tables, known in zip(captures, folders, kept, strict=True):
        if known and not tcp:
            traces.append(cached_decode(capture, logs, tables, kernel_drops=drops))
        else:
            traces.append(load_tables(tables) if tables.is_dir() else None)
    return traces


# Finds the rules that each endpoint broke, in the two captures of a job. A broken rule is reported once per role.

DETECTORS = (
    *packet_rules.PACKET_DETECTORS,
    *packet_rules.ACK_DETECTORS,
    *stream_rules.STREAM_DETECTORS,
    *path_rules.ID_DETECTORS,
    *handshake_rules.HELLO_DETECTORS,
    *handshake_rules.BEGINNING_DETECTORS,
    *key_rules.KEY_DETECTORS,
    *path_rules.ROUTE_DETECTORS,
    *http3_rules.HTTP3_DETECTORS,
)
"""Each detector checks a few rules for one endpoint of one connection."""

_ACROSS = (handshake_rules.early_limits, stream_rules.remembered_limits, handshake_rules.token_versions)
"""Detectors that also get the data of the same endpoint in earlier connections."""

_BrokenRules = dict[tuple[str, str], list[tuple[Side, Broken]]]
"""Rule and role → where the endpoint broke the rule."""
_REPEATED = tuple(set(NAMES_OF_FRAMES) - {"padding", "ping", "ack"})
_MOST = 100  # occurrences of a broken rule, and repeats of a frame, whose arrival is looked up: there may be thousands
_KEY_MESSAGES = {EARLY: Message.CLIENT_HELLO, HANDSHAKE: Message.SERVER_HELLO, ONE_RTT: Message.FINISHED}


def protocol_findings(client_side: Trace, server_side: Trace) -> tuple[Finding, ...]:
    """The broken rules of a job, in the order of the table of rules. Empty when one of the two captures is missing."""
    return _as_findings(_broken_rules(_sides(client_side, server_side)))


def _as_findings(broken_rules: _BrokenRules) -> tuple[Finding, ...]:
    order = {rule: place for place, rule in enumerate(BY_ID)}
    return tuple(
        _broken_rule(broken_rules[key]) for key in sorted(broken_rules, key=lambda key: (order[key[0]], key[1]))
    )


def _sides(client_side: Trace, server_side: Trace) -> list[tuple[Side, Side]]:
    """Client and server of each connection. Empty when one of the two captures is missing.

    An endpoint is judged by the capture at its own end. This capture shows the packets that the endpoint sent and the
    peer's packets that arrived. Missing evidence breaks no rule.
    """
    recording = Recording(client_side, server_side)
    if recording.client is None or recording.server is None:
        return []
    client, server = recording.client, recording.server
    scopes = [Scope(recording, number) for number in range(len(recording.connections))]
    return [(Side(scope, CLIENT, client, server), Side(scope, SERVER, server, client)) for scope in scopes]


def _broken_rules(sides: list[tuple[Side, Side]]) -> _BrokenRules:
    """The broken rules of a job."""
    broken_rules: _BrokenRules = {}
    earlier: tuple[list[Side], list[Side]] = [], []
    for pair in sides:
        for side, before in zip(pair, earlier, strict=True):
            for broken in _broken(side, before):
                broken_rules.setdefault((broken.rule, side.role), []).append((side, broken))
            before.append(side)
    return broken_rules


def _unfounded(sides: list[tuple[Side, Side]], broken_rules: _BrokenRules) -> Iterator[PacketPlace]:
    """`TraceFacts.unfounded` of these connections."""
    rules: dict[Side, set[str]] = {}
    for (rule, _), cases in broken_rules.items():
        for side, _ in cases:
            rules.setdefault(side, set()).add(rule)
    for client, server in sides:
        for side, peer in ((client, server), (server, client)):
            if (place := handshake_rules.unfounded(side, peer, rules.get(peer, set()))) is not None:
                yield place


def _noticed(broken_rules: _BrokenRules) -> dict[tuple[str, str], float]:
    """`TraceFacts.noticed` of these rules."""
    noticed: dict[tuple[str, str], float] = {}
    for (rule, role), occurrences in broken_rules.items():
        times = [time for each in occurrences[:_MOST] if (time := _noticed_at(*each)) is not None]
        for code in {rule, BY_ID[rule].finding or rule} if times else ():
            noticed[code, role] = min(*times, noticed.get((code, role), float("inf")))
    return noticed


def _noticed_at(side: Side, broken: Broken) -> float | None:
    """When the peer could have read the packets that broke a rule, in seconds; infinity: never. None: not known."""
    if side.scope.recording.origin_ns is None:
        return None
    peer = Side(side.scope, 1 - side.sender, side.far, side.capture)
    keys = side.capture.packet_key
    times = [_read_at(side, peer, row) for row in broken.packets if row in side.sent and keys[row] != NULL]
    if not times:
        return None
    read = max(times[0], min(times[1:])) if broken.pair and len(times) > 1 else min(times)
    return (read - side.scope.recording.origin_ns) / 1e9


def _read_at(side: Side, peer: Side, row: int) -> float:
    """When `peer` could have read this packet, or a later packet that repeats one of its frames, in ns; infinity:
    never."""
    near, far = side.capture, peer.capture
    for packet in (row, *_repeats(side, row)):
        key = near.packet_key[packet]
        before = int((near.packet_key[:packet] == key).sum())  # packets with the same number
        arrived = far.packet_time[far.packet_key == key][before:]
        keys = _keys_at(side, peer, int(side.capture.type[packet]))
        if len(arrived) and keys < float("inf") and side.is_valid(np.array([packet])).all():
            return max(float(arrived[0]), keys)
    return float("inf")


def _repeats(side: Side, row: int) -> list[int]:
    """The first later packets of an endpoint with a frame of the packet `row`, or with a part of its data."""
    later: set[int] = set()
    for table, own, names in (
        (side.capture.stream_frames, side.stream_frames(), ("stream_id",)),
        (side.capture.frames, side.frames(*_REPEATED), ("type", "stream_id", "value")),
    ):
        packet, start = table["packet"][own], table["offset"][own]
        end = start + np.maximum(table["length"][own], 1)
        for at in np.flatnonzero(packet == row):
            same = (packet > row) & (start < end[at]) & (end > start[at])
            for name in names:
                same &= table[name][own] == table[name][own[at]]
            later.update(packet[same].tolist())
    return sorted(later)[:_MOST]


def _keys_at(side: Side, peer: Side, kind: int) -> float:
    """When the TLS message arrived that gives `peer` the keys for packets of this type (RFC 9001 §4.1, §5.7), in ns;
    infinity: never. 0: the message is not known."""
    needed = _KEY_MESSAGES.get(kind, 0)
    if side.message(needed, side.sender) is None:
        return 0
    message = peer.message(needed, side.sender)
    return float("inf") if message is None else peer.at(int(message["packet"]))


def _broken(side: Side, earlier: list[Side]) -> Iterator[Broken]:
    if not len(side.sent):
        return
    for detector in DETECTORS:
        yield from detector(side)
    for across in _ACROSS:
        yield from across(side, earlier)


def _broken_rule(occurrences: list[tuple[Side, Broken]]) -> Finding:
    """One finding for all connections in which an endpoint broke a rule, with the packets of the first connection."""
    side, broken = occurrences[0]
    rule = BY_ID[broken.rule]
    connections = len({side.scope.number for side, _ in occurrences})
    return Finding(
        code=rule.id,
        requirement=rule.requirement,
        expected="every packet of the endpoint keeps this rule",
        actual=broken.actual + (f"; in {format_count(connections, 'connection')}" if connections > 1 else ""),
        role=ROLES[side.sender],
        section=rule.reference,
    ).proven_by(*side.scope.places(side.capture, broken.packets))
