"""`./bentpipe compare A B`: what changed between two runs, of which one can say so."""

from runner.compare.compare import Comparison, compare
from runner.compare.conditions import TOPICS

__all__ = ["TOPICS", "Comparison", "compare"]
