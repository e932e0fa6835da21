"""Blames an endpoint that used NET_ADMIN against its own interface. Packets then can't reach the endpoint, or the
endpoint sends frames that no link carries. Without these findings, the host would seem to be disturbed."""

from collections.abc import Callable, Mapping

from runner.model.artifacts import Evidence, InterfaceChange, InterfaceChangeKind
from runner.model.codes import LINK_BROKEN
from runner.model.result import Finding, LinkTruth
from runner.model.run import CaseRecord

_MTU = 1500  # bytes, of every interface of a lane
_SMALLEST_MTU = 1280  # bytes; with less, an interface loses IPv6 and can't receive QUIC's Initial packets (RFC 8200 §5)
_REQUIREMENT = "An endpoint leaves its interface eth0 switched on, with its MTU, addresses and offloads."
_SECTION = "endpoint contract, Capabilities"
_KIND = InterfaceChangeKind


def broken_link(evidence: Evidence, truth: LinkTruth | None) -> Finding | None:
    """The finding when the simulator or a capture failed because of an endpoint's interface; None otherwise."""
    if evidence.error.get("code") in LINK_BROKEN:
        return _first(evidence, lambda change: change.kind in {_KIND.OFF, _KIND.DELETED})
    if truth is None or evidence.error:
        return None
    if truth.send_errors and (finding := _first(evidence, _stops_sending)):
        return finding
    return _malformed(evidence, truth)


def deaf_endpoint(evidence: Evidence, record: CaseRecord) -> Finding | None:
    """The finding when an endpoint changed its interface during the transfer so that no packet reaches it; None
    otherwise. It is a cause only in a job that failed."""
    ended = evidence.client.ended

    def is_deaf(change: InterfaceChange) -> bool:
        if ended is not None and change.time > ended:
            return False
        if change.kind is _KIND.MTU:
            return _is_below(change, _SMALLEST_MTU)
        if change.kind is _KIND.ADDRESS:
            is_link_local = change.value.startswith("fe80:")
            return not is_link_local and (":" in change.value) == (record.host == "server6")
        return True

    return _first(evidence, is_deaf)


def misaddressed_frames(counts: Mapping[str, int], truth: LinkTruth | None) -> Finding | None:
    """The finding when most datagrams of an endpoint did not enter the link, because of their MAC address; None
    otherwise. `counts`: these datagrams by role. It is a cause only in a job that failed."""
    entered = {"client": truth.return_.packets_in, "server": truth.forward.packets_in} if truth is not None else {}
    for role, count in counts.items():
        if count > entered.get(role, count):
            return Finding(
                code="misaddressed-frames",
                requirement="An endpoint sends its packets to the MAC address of its gateway.",
                expected="frames that enter the link",
                actual=f"{count} datagrams of the {role} have another MAC address, {entered[role]} packets entered",
                role=role,
                section=_SECTION,
            )
    return None


def _stops_sending(change: InterfaceChange) -> bool:
    return change.kind in {_KIND.OFF, _KIND.DELETED, _KIND.OVERRUN} or _is_below(change, _MTU)


def _is_below(change: InterfaceChange, mtu: int) -> bool:
    return change.kind is _KIND.MTU and int(change.value) < mtu


def _first(evidence: Evidence, matters: Callable[[InterfaceChange], bool]) -> Finding | None:
    """The finding about the first change that matters; None when there is none."""
    changes = [
        (change.time, role, change)
        for role, endpoint in (("client", evidence.client), ("server", evidence.server))
        for change in endpoint.interface_changes
        if matters(change)
    ]
    if not changes:
        return None
    time, role, change = min(changes, key=lambda each: each[0])
    return Finding(
        code="interface-changed",
        requirement=_REQUIREMENT,
        expected="the interface as at the start of the job",
        actual=f"after {time:.2f} s the {role} {_ACTIONS[change.kind].format(change.value)}",
        role=role,
        section=_SECTION,
    )


_ACTIONS = {
    _KIND.OFF: "switched eth0 off",
    _KIND.DELETED: "deleted eth0",
    _KIND.MTU: "set the MTU of eth0 to {} bytes",
    _KIND.MAC: "changed the MAC address of eth0 to {}",
    _KIND.ADDRESS: "removed the address {} from eth0",
    _KIND.OVERRUN: "changed eth0 more often than bentpipe can note",
}


def _malformed(evidence: Evidence, truth: LinkTruth) -> Finding | None:
    """The finding about frames that no link carries. With a middlebox, its boxes sent them."""
    sent = {"client": truth.malformed_client, "server": truth.malformed_server}
    if evidence.via is not None or not any(sent.values()):
        return None
    role = max(sent, key=sent.__getitem__)
    return Finding(
        code="malformed-frames",
        requirement=_REQUIREMENT,
        expected=f"frames of one datagram each, of at most {_MTU} bytes, with a checksum",
        actual=f"{sent[role]} frames of the {role} are longer, or have no checksum",
        role=role,
        section=_SECTION,
    )
