"""The table of rules: one row for each MUST or MUST NOT of the QUIC and HTTP/3 RFCs, and where bentpipe checks it."""

from runner.judge.rules import (
    rfc9000_connection,
    rfc9000_frames,
    rfc9000_packets,
    rfc9001,
    rfc9002,
    rfc9114,
    rfc9204,
    rfc9221,
    rfc9287,
    rfc9368,
    rfc9369,
)
from runner.judge.rules.nouns import Rule, Where, Who

RULES: tuple[Rule, ...] = tuple(
    rule
    for module in (
        rfc9000_connection,
        rfc9000_packets,
        rfc9000_frames,
        rfc9001,
        rfc9002,
        rfc9114,
        rfc9204,
        rfc9221,
        rfc9287,
        rfc9368,
        rfc9369,
    )
    for rule in module.DOCUMENT.rules
)
"""All rules, ordered by RFC and section."""

BY_ID: dict[str, Rule] = {rule.id: rule for rule in RULES}

__all__ = ["BY_ID", "RULES", "Rule", "Where", "Who"]
