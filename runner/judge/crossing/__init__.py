"""Judges how traffic crossed the satellite segment: connections that a middlebox split, and data that an eavesdropper
sees."""
