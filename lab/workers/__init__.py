"""Tests of workers: no job is lost, no job counts twice, and no process or file is left behind."""
