"""Nightly runs: what runs each night, how long its evidence is kept, where the site goes, whom to tell what changed."""
