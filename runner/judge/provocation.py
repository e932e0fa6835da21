"""Finds broken rules that made the peer close the connection with an error. Then the peer is not at fault."""

from runner.model.result import Finding
from testcases.base import CaseEvidence

# Error code of a CONNECTION_CLOSE (RFC 9000 §20.1, RFC 9368 §8) → the beginnings of the ids of rules whose violation
# causes this error.
_ANSWERED: dict[int, tuple[str, ...]] = {
    0x03: ("rfc9000-4.1-stream-limit", "rfc9000-4.1-connection-limit", "rfc9000-19.8-stream-offset"),
    0x04: ("rfc9000-4.6-too-many-streams", "rfc9000-19.14-"),
    0x05: (
        *("rfc9000-19.4-", "rfc9000-19.5-", "rfc9000-19.8-stream-not", "rfc9000-19.8-stream-rec", "rfc9000-19.10-"),
        "rfc9000-19.13-",
    ),
    0x06: ("rfc9000-4.5-",),
    0x07: (
        *(
            "rfc9000-12.4-",
            "rfc9000-19.3.1-",
            "rfc9000-19.6-",
            "rfc9000-19.7-token-empty",
            "rfc9000-19.8-stream-offset",
        ),
        *("rfc9000-19.11-", "rfc9000-19.14-", "rfc9000-19.15-"),
    ),
    0x08: ("rfc9000-7.3-", "rfc9000-7.4-", "rfc9000-18-", "rfc9000-18.2-"),
    0x09: ("rfc9000-5.1.1-too-many-ids",),
    0x0A: (
        *("rfc9000-8.2.2-response-unasked", "rfc9000-12.4-", "rfc9000-12.5-", "rfc9000-13.1-"),
        *("rfc9000-17.2-reserved-", "rfc9000-17.3.1-reserved-", "rfc9000-19.7-token-from-client", "rfc9000-19.15-"),
        *("rfc9000-19.16-", "rfc9000-19.20-", "rfc9001-4.6.1-", "rfc9001-8.3-", "rfc9001-8.4-"),
    ),
    0x0E: ("rfc9001-6.1-update-", "rfc9001-6.2-ack-", "rfc9001-6.4-"),
    0x11: ("rfc9368-",),
}


def provocations(violations: tuple[Finding, ...], context: CaseEvidence) -> tuple[Finding, ...]:
    """The violations after which the other endpoint closed a connection with the matching error code."""
    closes = [
        (close.sender, _ANSWERED.get(close.code, ()), close.time)
        for connection in context.facts.connections
        for close in connection.closes
        if not close.application and close.time is not None
    ]
    return tuple(
        violation
        for violation in violations
        if any(
            violation.role != closer and violation.code.startswith(rules) and min(violation.times, default=time) <= time
            for closer, rules, time in closes
        )
    )
