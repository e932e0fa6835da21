"""What a terminal shows: tables, progress, results, the matrix."""
