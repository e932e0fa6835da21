"""What the public QUIC Interop Runner would have said of the same job: its criteria in our words, on our facts.

Its tools are not imitated: it reads traces with tshark, which can't open every packet. Where its criterion and ours
differ, the reason says what it looks at. Source: its `testcases_quic.py` and `testcase.py` of 2026.
"""

from collections.abc import Callable, Iterator

from runner.model.artifacts import Evidence
from runner.model.result import Outcome, PublicVerdict
from runner.model.run import CaseRecord
from runner.trace import ConnectionFacts, TraceFacts

_V1, _V2 = 0x00000001, 0x6B3343CF
_CHACHA20 = 0x1303
_MOST_STREAMS = 1000
_CHAIN = 7500  # bytes of CRYPTO data in the server's Handshake packets
_LATE_BYTES = 5000  # of the client in 1-RTT packets, half of 40 names of 250 characters
_SAME = 1e-6  # seconds: two sights of one datagram

Reasons = Iterator[str]
Criterion = Callable[[TraceFacts, Evidence], Reasons]


def public_verdict(case: CaseRecord, facts: TraceFacts, evidence: Evidence) -> PublicVerdict | None:
    """Its verdict and the first reason; None for a case that it doesn't have, or would have set up otherwise: a chain
    of certificates shorter than its own."""
    criterion = _CRITERIA.get(case.name)
    if criterion is None or (case.chain_length > 1 and case.chain_bytes < _CHAIN):
        return None
    reason = next(_endings(evidence), None) or next(criterion(facts, evidence), None)
    return PublicVerdict(outcome=Outcome.FAILED if reason else Outcome.SUCCEEDED, why=reason or "")


def _endings(evidence: Evidence) -> Reasons:
    """It takes the client's exit code alone."""
    if evidence.client.timed_out:
        yield "the client did not end in time"
    elif evidence.client.exit_code not in (0, None):
        yield f"the client ended with exit code {evidence.client.exit_code}"


def _answered(facts: TraceFacts) -> list[ConnectionFacts]:
    """It counts handshakes by the source connection IDs of the server's Initial packets."""
    return [one for one in facts.connections if one.landmarks.server_hello is not None]


def _handshakes(facts: TraceFacts, expected: int) -> Reasons:
    if len(_answered(facts)) != expected:
        yield f"{len(_answered(facts))} handshakes in place of {expected}"


def _files(evidence: Evidence) -> Reasons:
    if evidence.extra_files or not all(file.equal for file in evidence.files):
        yield "the files in /downloads are not those that were asked for"


def _plain(facts: TraceFacts, evidence: Evidence, handshakes: int = 1) -> Reasons:
    yield from _handshakes(facts, handshakes)
    if {one.version for one in _answered(facts)} != {_V1}:
        yield "the server's Initial packets are not of version 1 alone"
    yield from _files(evidence)


def _handshake(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    if any(one.retries for one in facts.connections):
        yield "a Retry packet"


def _longrtt(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    hellos = sum(one.client_hello_count for one in facts.connections)
    if hellos < 2:
        yield f"{hellos} ClientHello in place of 2, however far apart; a PING doesn't count"


def _chacha20(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    if {one.offered_suites[:1] for one in facts.connections} != {(_CHACHA20,)}:
        yield "the first suite that the client offers is not ChaCha20"


def _multiplexing(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    limits = [one.initial_max_streams_bidi for one in facts.connections]
    if any(limit is None or limit > _MOST_STREAMS for limit in limits):
        yield f"the server's first stream limit is not at most {_MOST_STREAMS}"


def _retry(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    retried = [one for one in facts.connections if one.retries]
    if not retried:
        yield "no Retry packet"
    if any(one.retry_token_echoed is not True for one in retried):
        yield "no Initial packet with the token of a Retry"
    if any(one.packet_number_reset for one in retried):
        yield "the client's packet number began anew"


def _resumption(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence, 2)
    if [one.certificate_sent for one in _answered(facts)] != [True, False]:
        yield "not a Certificate in the first handshake alone"


def _zerortt(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence, 2)
    if all(one.landmarks.early_data is None for one in facts.connections):
        yield "no 0-RTT packet"
    late = sum(one.client_1rtt_bytes for one in facts.connections)
    if late > _LATE_BYTES:
        yield f"{late} B of the client in 1-RTT packets, more than {_LATE_BYTES}"


def _amplification(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    for connection in facts.connections:
        if connection.server_handshake_bytes < _CHAIN:
            yield f"{connection.server_handshake_bytes} B of CRYPTO data in Handshake packets, not {_CHAIN}"
        sent = connection.amplification
        if sent is not None and sent.excess >= sent.received:  # it allows four times what was received
            yield "the server sent four times what it had received"
        if sent is not None and sent.validated_by is None:
            yield "nothing proves the client's address"


def _keyupdate(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    for role in ("client", "server"):
        if not sum(getattr(one, f"{role}_key_updates") for one in facts.connections):
            yield f"no packet of the {role} in key phase 1"


def _ecn(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _handshake(facts, evidence)
    for connection in facts.connections:
        for role, end in (("client", connection.client_ecn), ("server", connection.server_ecn)):
            if end.sent is None or not end.sent.ect:
                yield f"no packet of the {role} with ECT"
            elif end.sent.ce:
                yield f"a packet of the {role} with CE as it left"
            if not end.ack_frames_with_counts:
                yield f"no ACK frame of the {role} with ECN counts"


def _rebinding(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    if all(sum(path.server_datagrams > 0 for path in one.paths) < 2 for one in facts.connections):
        yield "the server used one path"
    for connection in facts.connections:
        for path in connection.paths[1:]:
            if path.server_first is None:
                continue
            sent = [
                one
                for one in connection.challenges
                if one.sender == "server" and (one.client, one.server) == (path.client, path.server)
            ]
            if not any(one.time is not None and abs(one.time - path.server_first) < _SAME for one in sent):
                yield f"the server's first packet to {path.client} has no PATH_CHALLENGE"
            elif not sent[0].answered:
                yield "a PATH_CHALLENGE without PATH_RESPONSE"


def _rebinding_address(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _rebinding(facts, evidence)
    if len({path.client.rpartition(":")[0] for one in facts.connections for path in one.paths}) < 2:
        yield "one address of the client"


def _migration(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _rebinding(facts, evidence)
    for connection in facts.connections:
        for path in connection.paths[1:]:
            if connection.paths[0].client_cids.keys() & path.client_cids.keys():
                yield "the client's connection ID did not change with its path"


def _ipv6(facts: TraceFacts, evidence: Evidence) -> Reasons:
    yield from _plain(facts, evidence)
    if 4 in facts.ip_versions:
        yield "packets over IPv4"


def _v2(facts: TraceFacts, evidence: Evidence) -> Reasons:
    for connection in facts.connections:
        if (connection.original_version, connection.version) != (_V1, _V2):
            yield "not from version 1 to version 2"
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
