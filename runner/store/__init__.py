"""Runs on disk: reading, migrating, collecting."""
