"""Reading and writing files that others may have tampered with, and files that are stored compressed."""
