"""All mutants, by family. Importing this package registers them."""

from runner.tests.mutate.mutants import (
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
from runner.tests.mutate.registry import MUTANTS, Mutant

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
