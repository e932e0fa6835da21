"""`bentpipe check`: tests whether an image or a local build keeps the contract, and which cases succeed with peers."""

from runner.check.candidate import PEERS
from runner.check.check import Report, Verdict, check

__all__ = ["PEERS", "Report", "Verdict", "check"]
