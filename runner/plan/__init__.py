"""What the user asks → the jobs of a run."""
