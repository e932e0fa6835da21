"""Turns the parameters of a segment into the simulator's JSON document (sim/README.md). Only this module knows the
document's form."""

from dataclasses import asdict
from typing import Any

from runner.lanes.addresses import LEFT_NETS, READY_PORT, RIGHT_NETS
from runner.lanes.request import LaneJob
from runner.model.impairments import NO_PATH_IMPAIRMENTS, PathImpairments
from runner.model.link_record import LinkParameters

LOGS = "/logs"
TRUTH = "truth.json"
PACKETS = "packets.bin"


def link_documents(job: LaneJob) -> dict[str, dict[str, Any]]:
    """The documents of a job's segments, by the name of the segment. Each segment has its own seed."""
    return {
        name: link_document(
            forward=segment.forward,
            return_=segment.return_,
            seed=job.seed ^ number,
            path=segment.impairments,
            lose_all=job.lose_all,
            flood=job.flood,
        )
        for number, (name, segment) in enumerate(job.topology.segments.items())
    }


def link_document(
    *,
    forward: LinkParameters,
    return_: LinkParameters,
    seed: int,
    path: PathImpairments = NO_PATH_IMPAIRMENTS,
    lose_all: bool = False,
    flood: int | None = None,
) -> dict[str, Any]:
    """The document for a simulator whose eth0 leads to the client and whose eth1 leads to the server.

    `lose_all`: losses affect packets of every protocol, not only UDP. `flood`: bytes, counted as in a capture; when one
    side sends more, the link carries nothing more. Directions and impairments are written with the field names of their
    dataclasses, so that each of them has the same name everywhere.
    """
    return {
        "left": {"interface": "eth0", "foreign": RIGHT_NETS},
        "right": {"interface": "eth1", "foreign": LEFT_NETS},
        "forward": asdict(forward),
        "return": asdict(return_),
        "impairments": asdict(path),
        "loss_protocol": "any" if lose_all else "udp",
        "seed": seed,
        "flood": flood or 0,
        "truth": f"{LOGS}/{TRUTH}",
        "packets": f"{LOGS}/{PACKETS}",
        "ready_port": READY_PORT,
    }
