"""Sends mutated run folders through every command that reads stored runs."""
