"""Numbers from raw samples, computed late: what is stored is samples only."""

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
