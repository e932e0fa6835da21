"""One module for each detector."""
