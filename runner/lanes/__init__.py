"""Lanes: network namespaces of this host in which a job runs in real time."""
