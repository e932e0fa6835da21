"""All mutants, by family. Importing this package registers them."""

from lab.mutate.mutants import (
    application,
    connection,
    frames,
    identities,
    packets,
    parameters,
    paths,
    streams,
    versions,
)
from lab.mutate.registry import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "application",
    "connection",
    "frames",
    "identities",
    "packets",
    "parameters",
    "paths",
    "streams",
    "versions",
]
