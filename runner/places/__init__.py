"""Places where jobs run: lanes of this host, guests in virtual time, real links, workers on other hosts."""
