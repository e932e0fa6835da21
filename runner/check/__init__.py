"""`bentpipe check`: does an image or a local build keep the contract, and how does it fare against reference peers?"""

from runner.check.report import Report, Verdict
from runner.check.work import PEERS, CheckOptions, check

__all__ = ["PEERS", "CheckOptions", "Report", "Verdict", "check"]
