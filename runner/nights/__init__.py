"""Nightly runs: their plan, how long evidence is kept, publication of the site, news."""
