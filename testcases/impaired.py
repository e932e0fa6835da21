"""Cases whose link alone differs: it loses, corrupts, reorders or stops packets. The files must arrive all the same."""

from runner.model.link import LinkRecord
from runner.model.stack import HTTP09, OVER_TCP
from runner.units import KIB, MIB
from testcases import checks
from testcases.base import Case, Check
from testcases.hits import Hit
from testcases.links import BLACKHOLE, CORRUPTION_2, CORRUPTION_30, LOSS_2, LOSS_30, REORDER_5, RETURN_LOSS_20


def _transfer(
    name: str,
    abbreviation: str,
    description: str,
    link: LinkRecord,
    hit: Check,
    *,
    size: int = 2 * MIB,
    iterations: int = 1,
    protocols: tuple[str, ...] = (HTTP09,),
) -> Case:
    """A transfer of one file. `hit`: the link's impairment affected it."""
    return Case(
        name=name,
        abbreviation=abbreviation,
        description=description,
        wire_name="transfer",
        link=link,
        files=(size,),
        iterations=iterations,
        preconditions=(hit,),
        protocols=protocols,
        over_tcp=checks.OVER_TCP if protocols != (HTTP09,) else (),
        checks=checks.ONE_CONNECTION,
    )


def _handshakes(name: str, abbreviation: str, description: str, link: LinkRecord, hit: Check) -> Case:
    """50 connections."""
    return Case(
        name=name,
        abbreviation=abbreviation,
        description=description,
        wire_name="multiconnect",
        link=link,
        files=(1 * KIB,) * 50,
        timeout=300.0,
        iterations=3,
        preconditions=(hit,),
        checks=(*checks.COMMON, checks.a_handshake_per_file, checks.version_is_1, checks.alpn_of_job),
    )


CASES = (
    _handshakes(
        "handshakeloss",
        "L1",
        "50 connections, each with 1 KiB, although 30 % of the packets are lost, at most 3 in a row.",
        LOSS_30,
        Hit("dropped_loss"),
    ),
    _handshakes(
        "handshakecorruption",
        "C1",
        "50 connections, each with 1 KiB, although 30 % of the packets arrive corrupted.",
        CORRUPTION_30,
        Hit("corrupted"),
    ),
    _transfer(
        "transferloss",
        "L2",
        "A 2 MiB file arrives although 2 % of the packets are lost both ways.",
        LOSS_2,
        Hit("dropped_loss", return_=False),
        iterations=5,
        protocols=(HTTP09, *OVER_TCP),
    ),
    _transfer(
        "transfercorruption",
        "C2",
        "A 2 MiB file arrives although 2 % of the packets arrive corrupted.",
        CORRUPTION_2,
        Hit("corrupted", return_=False),
        iterations=5,
    ),
    _transfer(
        "blackhole",
        "B",
        "A 10 MiB transfer continues after 2 s without any packet.",
        BLACKHOLE,
        Hit("dropped_outage"),
        size=10 * MIB,
    ),
    # Each late packet is 10 ms late; on a full link, eight later packets overtake it (RFC 9002 §6.1).
    _transfer(
        "reordering",
        "RO",
        "A 2 MiB file arrives although other packets overtake 5 % of the packets in both directions.",
        REORDER_5,
        Hit("held_back", least=5),
        iterations=3,
    ),
    # Later ACKs repeat lost ACK ranges (RFC 9000 §13.2.3).
    _transfer(
        "ackloss",
        "AL",
        "A 2 MiB file arrives although 20 % of the client's packets, which carry its ACKs, are lost in bursts.",
        RETURN_LOSS_20,
        Hit("dropped_loss", forward=False, least=5),
        iterations=3,
    ),
)
