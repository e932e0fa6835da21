"""Measures whether verdicts, intervals and alarms are true. Each module is a command."""
