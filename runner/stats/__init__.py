"""Statistics over raw samples. Runs store only the samples, and statistics are computed when they are shown."""

from runner.stats.summary import (
    CONFIDENCE,
    Attempts,
    Summary,
    count,
    median_interval,
    median_iteration,
    rate_interval,
    rate_text,
    summarise,
)

__all__ = [
    "CONFIDENCE",
    "Attempts",
    "Summary",
    "count",
    "median_interval",
    "median_iteration",
    "rate_interval",
    "rate_text",
    "summarise",
]
