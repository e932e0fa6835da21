"""Attacks on bentpipe itself, bounded and in their own namespaces: `.venv/bin/python -m runner.validation.attack`.

All attackers and all targets are made here and run on this host.
"""
