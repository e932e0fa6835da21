"""Recordings that test the checks: how each recording was made, and the code with which a bad recording must fail.

A bad recording is in `bad/NAME`. It was made with two misbehaving endpoints, which tolerate each other's sins
(implementations/_misbehaving), so the packets show only the sin. Fields of the case's record are replaced, so that
files are small and time-outs are short.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.model.link import LinkImpairments, MtuFall, Outage, PathImpairments, Rebinding
from runner.model.run import CaseRecord
from runner.tests.records import directed
from runner.units import KIB

Changes = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Good:
    """A recording of real stacks that must pass its case."""

    server: str
    client: str
    case: str
    changes: Changes = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it is, below this folder."""
        return f"{self.server}_{self.client}/{self.case}"


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A recording that must fail its case with only `code`. `expected` and `actual` are regular expressions."""

    name: str
    case: str
    code: str
    role: str = ""
    section: str
    expected: str = "every packet of the endpoint keeps this rule"  # of a finding that a rule decides
    actual: str
    client: str = ""  # faults by their names in CLIENT_PARAMS; for `server`, in SERVER_PARAMS
    server: str = ""
    client_stack: str = ""  # the client's stack, when it is not misbehaving
    server_stack: str = ""
    also: frozenset[str] = frozenset()  # further codes of findings that this fault causes
    changes: Changes = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it is, below this folder."""
        return f"bad/{self.name}"


def changed(record: CaseRecord, changes: Changes) -> CaseRecord:
    """The record with changed fields. `data_rate` and `impaired` apply to both directions, `impaired_return` only to
    the return direction."""
    fields = dict(changes)
    link: dict[str, Any] = {}
    if "data_rate" in fields:
        link["data_rate"] = fields.pop("data_rate")
    if "impaired" in fields:
        link["impairments"] = fields.pop("impaired")
    back = {"impairments": fields.pop("impaired_return")} if "impaired_return" in fields else {}
    forward, return_ = replace(record.forward, **link), replace(record.return_, **link, **back)
    path = fields.pop("impairments", None)
    return replace(directed(record, forward=forward, return_=return_, impairments=path), **fields)


def sizes(*bytes_each: int) -> Changes:
    """Files of other sizes."""
    return {"file_sizes": bytes_each}


# Links of the recordings that need an impairment: the link of the case, but slower and with earlier impairments, for
# small files.

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

# When this was recorded, the chain of 9 certificates had 4.4 kB.
SHORT_CHAIN = {"chain_bytes": 0}

_LINKS = {
    "address": ADDRESS,
    "short-chain": SHORT_CHAIN,
    "migration": MIGRATION,
    "mtu-fall": MTU_FALL,
    "port": PORT,
    "two-addresses": TWO_ADDRESSES,
}


def _bad(
    case: str,
    name: str,
    *,
    files: Sequence[int] = (),
    times: int = 1,
    link: str = "",
    also: Sequence[str] = (),
    **words: str,
) -> Bad:
    """One entry of bad.toml."""
    changes = _LINKS[link] if link else sizes(*tuple(files) * times) if files else {}
    return Bad(case=case, name=name, changes=changes, also=frozenset(also), **words)


BAD = tuple(
    _bad(case, name, **entry)
    for case, entries in tomllib.loads((Path(__file__).parent / "bad.toml").read_text()).items()
    for name, entry in entries.items()
)

_LONGER = sizes(40 * KIB)  # so that the transfer still runs when the path is validated

GOOD = (
    Good(server="quinn", client="quic-go", case="blackhole", changes=OUTAGE),
    Good(server="quic-go", client="quinn", case="handshakeloss", changes=sizes(*(1 * KIB,) * 3)),
    Good(server="quinn", client="quic-go", case="handshakecorruption", changes=sizes(*(1 * KIB,) * 3)),
    Good(
        server="quic-go",
        client="quic-go",
        case="transfercorruption",
        changes={"file_sizes": (40 * KIB,), "impaired": LinkImpairments(corruption=0.1)},
    ),
    Good(server="quinn", client="quic-go", case="reordering", changes=REORDERED),
    Good(server="quic-go", client="quinn", case="ackloss", changes=ACKS_LOST),
    Good(server="quinn", client="quic-go", case="postquantum", changes=sizes(*(1 * KIB,) * 3)),
    Good(server="quinn", client="quic-go", case="mtublackhole", changes=MTU_FALL),
    Good(server="quic-go", client="aioquic", case="versionnegotiation"),
    Good(server="quinn", client="quinn", case="amplificationlimit", changes=SHORT_CHAIN),
    Good(server="quinn", client="quic-go", case="rebind-port", changes={**PORT, **_LONGER}),
    Good(server="quic-go", client="quinn", case="rebind-addr", changes={**ADDRESS, **_LONGER}),
    Good(server="aioquic", client="quinn", case="rebind-port", changes={**PORT, **_LONGER}),
    Good(server="ngtcp2", client="ngtcp2", case="rebind-addr", changes={**ADDRESS, **_LONGER}),
    Good(server="misbehaving", client="aioquic", case="connectionmigration", changes=MIGRATION),
)

GOOD_ONES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("quic-go_quic-go/handshake", "handshake", ()),
    ("quinn_quinn/handshake", "handshake", ()),
    ("aioquic_aioquic/handshake", "handshake", ()),
    ("quic-go_quinn/longrtt", "longrtt", ()),
    ("quinn_aioquic/chacha20", "chacha20", (1024,)),
    ("quinn_quic-go/multiplexing", "multiplexing", (32,) * 250),
    ("quic-go_quinn/retry", "retry", (1024,)),
    ("ngtcp2_quinn/retry", "retry", (1024,)),
    ("quinn_quic-go/credit", "transfer", (81920, 81920, 122880)),
    ("ngtcp2_ngtcp2/v2", "v2", ()),
    ("quic-go_quinn/resumption", "resumption", (1024, 1024)),
    ("quic-go_quinn/zerortt", "zerortt", (1024, 1024)),
    ("ngtcp2_ngtcp2/zerortt", "zerortt", (1024, 1024)),
    ("quic-go_quinn/http3", "http3", (1024,)),
    ("quinn_aioquic/keyupdate", "keyupdate", (20480,)),
    ("quinn_quic-go/ecn", "ecn", (20480,)),
    ("quinn_aioquic/ipv6", "ipv6", (5120, 10240)),
    ("quinn_quinn/lossy", "transferloss", (102400,)),
    ("quic-go_quic-go/lossy", "goodput", (102400,)),
    ("quinn_quinn/lossy", "goodput", (102400,)),
    ("aioquic_aioquic/lossy", "goodput", (102400,)),
)
"""Good recordings of the other cases: folder, case, sizes of the files that were transferred."""
