"""What users configure: the catalogue of stacks and cases, real links, variants, selections."""
