"""All mutants. Importing this package registers them."""

from lab.mutate.mutants import application, handshake, packets, paths
from lab.mutate.mutation import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "application", "handshake", "packets", "paths"]
