"""What a path's lane is asked to do: plain frozen values, made by whoever knows paths and workloads."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.inputs.inputs import ServedFile
from runner.lanes.request import EndpointSpec, Request
from runner.model.impairments import NO_PATH_IMPAIRMENTS, PathImpairments
from runner.model.path import PathEvidence, Side
from runner.model.run import LinkParameters


@dataclass(frozen=True, kw_only=True)
class SegmentSpec:
    """Both directions of one segment."""

    forward: LinkParameters
    return_: LinkParameters
    path: PathImpairments = NO_PATH_IMPAIRMENTS


@dataclass(frozen=True, kw_only=True)
class PathJob(Request):
    """A job over a path. `sides`: those that run the path's image; `expected`: what the client must have in /downloads
    at the end.
    """

    sides: Mapping[Side, EndpointSpec]
    satellite: SegmentSpec
    ground: SegmentSpec
    expected: tuple[ServedFile, ...]
    evidence: PathEvidence  # for the judge
    server_port: int  # TCP, on which the server is ready
    controllers: Mapping[str, str] = field(default_factory=dict)  # TCP's congestion controller by role; cubic
