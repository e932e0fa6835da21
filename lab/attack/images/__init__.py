"""Hostile endpoint images against lanes: one base image with one behaviour per job."""
