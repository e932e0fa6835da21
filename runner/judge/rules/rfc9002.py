"""RFC 9002: loss detection and congestion control. Most requirements are about decisions inside the sender."""

from runner.judge.rules.nouns import CLIENT, ENDPOINT, Document

DOCUMENT = Document(9002)
_every, _case, _unseen = DOCUMENT.every, DOCUMENT.case, DOCUMENT.unseen

_INSIDE = "RTT estimate, timers and congestion window are inside the sender"

_unseen("5", "rtt-sample", ENDPOINT, "RTT samples come from newly acknowledged ack-eliciting packets.", _INSIDE)
_unseen(
    "6.1", "lost-too-early", ENDPOINT, "A packet is declared lost only after a later packet was acknowledged.", _INSIDE
)
_every(
    "6.2.1",
    "backoff",
    CLIENT,
    "While no packet of the server arrives, the probe timeout doubles: each time between two flights of Initial "
    "packets is at least 1.5 times the time before.",
)
_case("6.2.4", "no-probe", CLIENT, "A probe timeout sends an ack-eliciting packet.", "longrtt")
_unseen("6.2.2.1", "deadlock", CLIENT, "A client sends probes until its address is known to be valid.", _INSIDE)
_unseen("7", "beyond-window", ENDPOINT, "Bytes in flight stay within the congestion window.", _INSIDE)
_unseen(
    "7.6",
    "persistent-congestion",
    ENDPOINT,
    "Persistent congestion reduces the congestion window to the minimum.",
    _INSIDE,
)
_unseen("7.7", "no-pacing", ENDPOINT, "Packets are paced or bursts are limited.", _INSIDE)
