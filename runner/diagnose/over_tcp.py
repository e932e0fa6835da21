"""The diagnoses that hold for TCP, too, with the sections that are about it; all others are about QUIC."""

from dataclasses import replace

from runner.diagnose import Explanation

SECTIONS = {
    "application-idle": "RFC 9293 §3.8.6.2",
    "outage": "RFC 6298 §5",
    "queue-overflow": "RFC 7567 §2",
    "rate-collapse": "RFC 5681 §3.1",
    "receive-window": "RFC 9293 §3.8.6",
    "retransmitted-tail": "RFC 8985 §7",
    "return-link-full": "RFC 3449 §2",
    "slow-start-left-early": "RFC 9406",
    "spurious-retransmissions": "RFC 8985 §6",
    "standing-queue": "RFC 7567 §1",
    "window-after-loss": "RFC 5681 §3.2",
    "window-never-grew": "RFC 5681 §3.1",
}
"""Code → section. A code is here when its detector rests on bytes, times, arrivals and acknowledgements alone."""


def over_tcp(found: Explanation) -> Explanation:
    """The same explanation without what no fact of TCP supports."""
    kept = (one for one in found.diagnoses if one.code in SECTIONS)
    return replace(found, diagnoses=tuple(replace(one, section=SECTIONS[one.code]) for one in kept))
