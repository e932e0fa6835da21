"""Protocol invariants: the rules of the table that hold on every connection, judged from both captures of a job."""

from runner.judge.invariants.judge import protocol_findings

__all__ = ["protocol_findings"]
