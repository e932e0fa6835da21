"""`bentpipe check`: tests whether an image or a local build keeps the contract, and which cases succeed with peers."""

from runner.check.report import Report, Verdict
from runner.check.subject import PEERS
from runner.check.work import CheckOptions, check

__all__ = ["PEERS", "CheckOptions", "Report", "Verdict", "check"]
