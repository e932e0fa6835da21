"""Derives facts, numbers and plot series from the decoder's tables of one or both captures. All functions are pure."""

from runner.trace.bounds import Bound, rate_bound, slow_start_bound
from runner.trace.establish import facts
from runner.trace.measure import sample
from runner.trace.nouns import (
    Amplification,
    Challenge,
    ClientHello,
    Close,
    CreditExcess,
    EcnCounts,
    EcnFacts,
    Ending,
    Http3Stream,
    Landmarks,
    Path,
    Place,
    Probe,
    Request,
    SentLength,
    StreamFacts,
    UnreadPackets,
    VersionNegotiation,
)
from runner.trace.plot import series
from runner.trace.trace_facts import ConnectionFacts, FirstFlight, TraceFacts

__all__ = [
    "Amplification",
    "Bound",
    "Challenge",
    "ClientHello",
    "Close",
    "ConnectionFacts",
    "CreditExcess",
    "EcnCounts",
    "EcnFacts",
    "Ending",
    "FirstFlight",
    "Http3Stream",
    "Landmarks",
    "Path",
    "Place",
    "Probe",
    "Request",
    "SentLength",
    "StreamFacts",
    "TraceFacts",
    "UnreadPackets",
    "VersionNegotiation",
    "facts",
    "rate_bound",
    "sample",
    "series",
    "slow_start_bound",
]
