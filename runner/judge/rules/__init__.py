"""The rules of the RFCs, and their checks."""
