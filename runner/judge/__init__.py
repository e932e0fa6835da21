"""Judges jobs from facts: whether the evidence suffices, what the case checks, and which rules of RFCs were broken."""
