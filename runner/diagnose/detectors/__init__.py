"""One kind of diagnosis each."""
