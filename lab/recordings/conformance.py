"""Good recordings of the cases whose link has impairments, and all bad recordings, which bad.toml lists."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from lab.recordings.links import ACKS_LOST, ADDRESS, MIGRATION, MTU_FALL, OUTAGE, PORT, REORDERED, TWO_ADDRESSES
from lab.recordings.recordings import Bad, Good, sizes
from runner.model.link import LinkImpairments
from runner.units import KIB

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
