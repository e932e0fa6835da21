"""Diagnoses of transfers over TCP: without the patterns that exist only in QUIC. The others cite TCP's RFCs."""

from dataclasses import replace

from runner.diagnose import DETECTORS, Explanation


def over_tcp(explanation: Explanation) -> Explanation:
    """The explanation with only those diagnoses that hold for TCP. They use only bytes, times, arrivals and
    acknowledgements."""
    sections = sections_of_tcp()
    kept = (diagnosis for diagnosis in explanation.diagnoses if diagnosis.code in sections)
    return replace(
        explanation, diagnoses=tuple(replace(diagnosis, section=sections[diagnosis.code]) for diagnosis in kept)
    )


def sections_of_tcp() -> dict[str, str]:
    """Code → section of TCP's RFCs, for the patterns that hold for TCP."""
    return {
        pattern.code: pattern.over_tcp for patterns, _ in DETECTORS.values() for pattern in patterns if pattern.over_tcp
    }
