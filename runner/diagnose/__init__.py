"""Reasons why a transfer was slow."""
