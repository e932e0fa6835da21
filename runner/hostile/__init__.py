"""The hostile peer: endpoints meet a peer that breaks one rule at a time (docs/hostile.md)."""
