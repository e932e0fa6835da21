"""Tests that stacks of ours bring along, in the language that they are written in."""
