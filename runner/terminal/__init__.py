"""Prints tables, progress, results and the matrix to a terminal."""
