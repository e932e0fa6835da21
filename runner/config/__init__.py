"""Configuration: the catalogue of stacks and cases, links, variants, selections."""
