"""Real links: containers on other hosts, reached over SSH."""
