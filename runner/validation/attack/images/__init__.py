"""Hostile endpoint images against lanes: one base image, a behaviour per job."""
