"""Paths: what carries traffic over a satellite link, asked for workloads, judged from captures."""
