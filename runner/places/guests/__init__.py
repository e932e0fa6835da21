"""Jobs in virtual time, each in a guest of its own."""
