"""Judges jobs from facts: whether the evidence suffices, the checks of cases, and rules for every connection."""
