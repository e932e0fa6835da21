"""The work of one call: the loop over jobs and what it needs (width, pauses, retention, signals, time left)."""
