"""How traffic crossed the satellite segment: connections that a middlebox split, what an eavesdropper sees."""
