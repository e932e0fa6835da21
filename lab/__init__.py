"""Measures whether verdicts, intervals and alarms are right. Most modules are commands."""
