"""Attacks on bentpipe itself, bounded and in their own namespaces: `.venv/bin/python -m lab.attack`.

This package makes all attackers and all targets, and runs them on this host.
"""
