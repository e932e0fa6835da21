"""Which jobs a run has, in which order, and which are left: selection − done."""
