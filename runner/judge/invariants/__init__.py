"""Protocol invariants: the rules in `runner/judge/rules`, checked on every connection in both captures of a job."""

from runner.judge.invariants.judge import protocol_findings

__all__ = ["protocol_findings"]
