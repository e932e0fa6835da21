"""Finds the rules that each endpoint broke, in the two captures of a job. A broken rule is reported once per role, with
packets that prove it."""

from collections.abc import Iterator
from dataclasses import replace

from runner.decode.columns import CLIENT, SERVER, Trace
from runner.judge.rules import handshake_rules, http3_rules, key_rules, packet_rules, path_rules, stream_rules
from runner.judge.rules.rule_table import BY_ID
from runner.judge.rules.side import Broken, Capture, Side
from runner.model.result import Finding
from runner.trace.recording import ROLES, Recording, Scope
from runner.units import format_count

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

_SHOWN = 5  # packets of a finding


def protocol_findings(client_side: Trace, server_side: Trace) -> tuple[Finding, ...]:
    """The broken rules of a job, in the order of the table of rules. Empty when one of the two captures is missing.

    An endpoint is judged by the capture at its own end. This capture shows the packets that the endpoint sent and the
    peer's packets that arrived. Missing evidence breaks no rule.
    """
    recording = Recording(client_side, server_side)
    if recording.client is None or recording.server is None:
        return ()
    captures = {CLIENT: Capture(recording.client), SERVER: Capture(recording.server)}
    broken_rules: dict[tuple[str, str], list[tuple[Side, Broken]]] = {}
    earlier: dict[int, list[Side]] = {CLIENT: [], SERVER: []}
    for number in range(len(recording.connections)):
        scope = Scope(recording, number)
        for sender in (CLIENT, SERVER):
            side = Side(scope, sender, captures[sender], captures[1 - sender])
            for broken in _broken(side, earlier[sender]):
                broken_rules.setdefault((broken.rule, side.role), []).append((side, broken))
            earlier[sender].append(side)
    order = {rule: place for place, rule in enumerate(BY_ID)}
    return tuple(_finding(broken_rules[key]) for key in sorted(broken_rules, key=lambda key: (order[key[0]], key[1])))


def _broken(side: Side, earlier: list[Side]) -> Iterator[Broken]:
    if not len(side.sent):
        return
    for detector in DETECTORS:
        yield from detector(side)
    for across in _ACROSS:
        yield from across(side, earlier)


def _finding(occurrences: list[tuple[Side, Broken]]) -> Finding:
    """One finding for all connections in which an endpoint broke a rule, with the packets of the first connection."""
    side, broken = occurrences[0]
    rule = BY_ID[broken.rule]
    connections = len({side.scope.number for side, _ in occurrences})
    places = [
        place
        for place in (side.scope.place(side.capture.vantage, packet) for packet in broken.packets)
        if place is not None
    ]
    places = list({place.record: place for place in places}.values())[:_SHOWN]
    finding = Finding(
        code=rule.id,
        requirement=rule.requirement,
        expected="every packet of the endpoint keeps this rule",
        actual=broken.actual + (f"; in {format_count(connections, 'connection')}" if connections > 1 else ""),
        role=ROLES[side.sender],
        section=rule.reference,
    )
    if not places:
        return finding
    return replace(
        finding,
        packets=tuple(place.record for place in places),
        times=tuple(place.time for place in places if place.time is not None),
        vantage=places[0].vantage,
    )
