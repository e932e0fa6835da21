"""Links of the recordings that need an impairment: the case's own, but slower and sooner, for small files."""

from runner.model.impairments import Outage, PathImpairments, Rebinding
from runner.tests.recordings.nouns import Changes
from runner.units import KIB

# Transfers that last as long as the impairment needs, in few packets.
_SLOW = 250_000  # bit/s


def _rebinding(what: str) -> Changes:
    path = PathImpairments(rebinding=Rebinding(what=what, first=0.2, every=5.0))
    return {"file_sizes": (20 * KIB,), "data_rate": _SLOW, "impairments": path}


ADDRESS, PORT = _rebinding("address"), _rebinding("port")
OUTAGE: Changes = {
    "file_sizes": (20 * KIB,),
    "data_rate": _SLOW,
    "impairments": PathImpairments(outage=Outage(start=0.2, duration=0.4)),
}
MIGRATION: Changes = {"file_sizes": (20 * KIB,), "data_rate": _SLOW}
