"""`./bentpipe compare A B`: changes between two runs that are statistically significant."""

from runner.compare.between import RunMeans
from runner.compare.changes import Comparison
from runner.compare.compare import compare, run_means
from runner.compare.conditions import TOPICS

__all__ = ["TOPICS", "Comparison", "RunMeans", "compare", "run_means"]
