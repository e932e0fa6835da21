"""Attacks on bentpipe itself, bounded and in namespaces of their own: `.venv/bin/python -m runner.validation.attack`.

Everything that is attacked, and everything that attacks, is made here and runs on this host.
"""
