"""Tests of workers: no job is lost, no job counts twice, nothing is left behind; and their speed with many workers."""
