"""The loop over the jobs of one call, with its lanes, pauses, retention, signals and time left."""
