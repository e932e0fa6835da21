"""The verdict that the public QUIC Interop Runner would give on a job: its criteria are applied to bentpipe's facts.

The public runner reads traces with tshark, which can't decrypt every packet. This weakness is not imitated. Where a
criterion of the public runner differs from bentpipe's criterion, the reason names the public runner's criterion. Source
of the criteria: `testcases_quic.py` and `testcase.py` of the public runner in 2026.
"""

from collections.abc import Callable, Iterator

from runner.model.facts import ConnectionFacts, TraceFacts
from runner.model.result import Evidence, Outcome, PublicVerdict
from runner.model.run import CaseRecord
from runner.units import format_count

_V1, _V2 = 0x00000001, 0x6B3343CF
_CHACHA20 = 0x1303
_MOST_STREAMS = 1000
_CHAIN = 7500  # bytes of CRYPTO data in the server's Handshake packets
_LATE_BYTES = 5000  # bytes of the client in 1-RTT packets: half of 40 file names of 250 characters
_SAME = 1e-6  # seconds; times that differ by less are times of the same datagram

Reasons = Iterator[str]
Criterion = Callable[[TraceFacts, Evidence], Reasons]


def public_verdict(case: CaseRecord, facts: TraceFacts, evidence: Evidence) -> PublicVerdict | None:
    """The public runner's verdict and its first reason. None when the public runner doesn't have the case, or uses a
    longer certificate chain in it."""
    criterion = _CRITERIA.get(case.name)
    if criterion is None or (case.chain_length > 1 and case.chain_bytes < _CHAIN):
        return None
    reason = next(_endings(evidence), None) or next(criterion(facts, evidence), None)
    return PublicVerdict(outcome=Outcome.FAILED if reason else Outcome.SUCCEEDED, why=reason or "")


def _endings(evidence: Evidence) -> Reasons:
    """Reasons from the client's end. The public runner looks only at the client's exit code, not at the server's."""
    if evidence.client.timed_out:
        yield "the client did not end in time"
    elif evidence.client.exit_code not in (0, None):
        yield f"the client ended with exit code {evidence.client.exit_code}"


def _answered(facts: TraceFacts) -> list[ConnectionFacts]:
    """Connections with a ServerHello. The public runner counts handshakes by the source connection IDs of the server's
    Initial packets."""
    return [connection for connection in facts.connections if connection.landmarks.server_hello is not None]


def _handshakes(facts: TraceFacts, expected: int) -> Reasons:
    if len(_answered(facts)) != expected:
        yield f"{format_count(len(_answered(facts)), 'handshake')} instead of {expected}"


def _files(evidence: Evidence) -> Reasons:
    if evidence.extra_files or not all(file.equal for file in evidence.files):
        yield "the files in /downloads are not the requested files"


def _plain(facts: TraceFacts, evidence: Evidence, handshakes: int = 1) -> Reasons:
    yield from _handshakes(facts, handshakes)
    if {connection.version for connection in _answered(facts)} != {_V1}:
        yield "some Initial packets of the server are not of version 1"
    yield from _files(evidence)


def _handshake(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    if any(connection.retries for connection in facts.connections):
        yield "a Retry packet"


def _longrtt(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    hellos = sum(connection.client_hello_count for connection in facts.connections)
    if hellos < 2:
        yield f"{hellos} ClientHello instead of at least 2 (a PING doesn't count)"


def _chacha20(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    if {connection.offered_suites[:1] for connection in facts.connections} != {(_CHACHA20,)}:
        yield "the first suite that the client offers is not ChaCha20"


def _multiplexing(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    limits = [connection.initial_max_streams_bidi for connection in facts.connections]
    if any(limit is None or limit > _MOST_STREAMS for limit in limits):
        yield f"the server's first stream limit is not at most {_MOST_STREAMS}"


def _retry(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    retried = [connection for connection in facts.connections if connection.retries]
    if not retried:
        yield "no Retry packet"
    if any(connection.retry_token_echoed is not True for connection in retried):
        yield "no Initial packet with the token of a Retry"
    if any(connection.packet_number_reset for connection in retried):
        yield "the client's packet numbers started again"


def _resumption(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence, 2)
    if [connection.certificate_sent for connection in _answered(facts)] != [True, False]:
        yield "only the first handshake may have a Certificate, and it must have one"


def _zerortt(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence, 2)
    if all(connection.landmarks.early_data is None for connection in facts.connections):
        yield "no 0-RTT packet"
    late = sum(connection.client_1rtt_bytes for connection in facts.connections)
    if late > _LATE_BYTES:
        yield f"{late} B of the client in 1-RTT packets, more than {_LATE_BYTES}"


def _amplification(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    for connection in facts.connections:
        if connection.server_handshake_bytes < _CHAIN:
            yield f"{connection.server_handshake_bytes} B of CRYPTO data in Handshake packets, less than {_CHAIN}"
        sent = connection.amplification
        if sent is not None and sent.excess >= sent.received:  # the public runner allows less than four times
            yield "the server sent at least four times the bytes that it had received"
        if sent is not None and sent.validated_by is None:
            yield "no packet proves the client's address"


def _keyupdate(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    for role in ("client", "server"):
        if not sum(getattr(connection, f"{role}_key_updates") for connection in facts.connections):
            yield f"no packet of the {role} in key phase 1"


def _ecn(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _handshake(facts, evidence)
    for connection in facts.connections:
        for role, end in (("client", connection.client_ecn), ("server", connection.server_ecn)):
            if end.sent is None or not end.sent.ect:
                yield f"no packet of the {role} with ECT"
            elif end.sent.ce:
                yield f"the {role} sent a packet with CE"
            if not end.ack_frames_with_counts:
                yield f"no ACK frame of the {role} with ECN counts"


def _rebinding(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    if all(sum(path.server_datagrams > 0 for path in connection.paths) < 2 for connection in facts.connections):
        yield "the server used only one path"
    for connection in facts.connections:
        for path in connection.paths[1:]:
            if path.server_first is None:
                continue
            sent = [
                challenge
                for challenge in connection.challenges
                if challenge.sender == "server" and (challenge.client, challenge.server) == (path.client, path.server)
            ]
            if not any(
                challenge.time is not None and abs(challenge.time - path.server_first) < _SAME for challenge in sent
            ):
                yield f"the server's first packet to {path.client} has no PATH_CHALLENGE"
            elif not sent[0].answered:
                yield "a PATH_CHALLENGE without PATH_RESPONSE"


def _rebinding_address(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _rebinding(facts, evidence)
    if len({path.client.rpartition(":")[0] for connection in facts.connections for path in connection.paths}) < 2:
        yield "only one address of the client"


def _migration(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _rebinding(facts, evidence)
    for connection in facts.connections:
        for path in connection.paths[1:]:
            if connection.paths[0].client_cids & path.client_cids:
                yield "the client kept its connection ID on a new path"


def _ipv6(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    if 4 in facts.ip_versions:
        yield "packets over IPv4"


def _v2(facts: TraceFacts, evidence: Evidence) -> Reasons:
    for connection in facts.connections:
        if (connection.original_version, connection.version) != (_V1, _V2):
            yield "no change from version 1 to version 2"
    yield from _files(evidence)


def _one_each(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence, len(evidence.files))


_CRITERIA: dict[str, Criterion] = {
    **dict.fromkeys(("transfer", "http3", "blackhole", "transferloss", "transfercorruption", "goodput"), _plain),
    **dict.fromkeys(("handshakeloss", "handshakecorruption"), _one_each),
    "handshake": _handshake,
    "longrtt": _longrtt,
    "chacha20": _chacha20,
    "multiplexing": _multiplexing,
    "retry": _retry,
    "resumption": _resumption,
    "zerortt": _zerortt,
    "amplificationlimit": _amplification,
    "keyupdate": _keyupdate,
    "ecn": _ecn,
    "rebind-port": _rebinding,
    "rebind-addr": _rebinding_address,
    "connectionmigration": _migration,
    "ipv6": _ipv6,
    "v2": _v2,
}
