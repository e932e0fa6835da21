"""The jobs of a run in their order, and those that are left: selection − done."""
