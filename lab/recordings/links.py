"""Links of the recordings that need an impairment: the link of the case, but slower and with earlier impairments, for
small files."""

from lab.recordings.recordings import Changes
from runner.model.link import LinkImpairments, MtuFall, Outage, PathImpairments, Rebinding
from runner.units import KIB

# At this data rate, transfers of few packets last as long as the impairment needs.
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
TWO_ADDRESSES: Changes = {
    "file_sizes": (40 * KIB,),
    "data_rate": _SLOW,
    "timeout": 6.0,
    "impairments": PathImpairments(rebinding=Rebinding(what="address", first=0.2, every=0.5)),
}
MTU_FALL: Changes = {
    "file_sizes": (60 * KIB,),
    "data_rate": _SLOW,
    "timeout": 12.0,
    "impairments": PathImpairments(mtu_fall=MtuFall(size=1280, start=0.8)),
}
REORDERED: Changes = {
    "file_sizes": (30 * KIB,),
    "impaired": LinkImpairments(reorder=0.35, reorder_delay=0.010),
}
ACKS_LOST: Changes = {
    "file_sizes": (40 * KIB,),
    "impaired_return": LinkImpairments(gilbert_elliott=(0.4, 0.4)),
}
MIGRATION: Changes = {"file_sizes": (20 * KIB,), "data_rate": _SLOW}
