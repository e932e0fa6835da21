"""`./bentpipe compare A B`: changes between two runs that are statistically significant."""

from runner.compare.compare import Comparison, RunMeans, compare, run_means
from runner.compare.conditions import TOPICS

__all__ = ["TOPICS", "Comparison", "RunMeans", "compare", "run_means"]
