"""What a path's lane is asked to do: plain frozen values, made by whoever knows paths and workloads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.deploy.request import EndpointSpec, Limits
from runner.inputs import ServedFile
from runner.model.impairments import NO_PATH_IMPAIRMENTS, PathImpairments
from runner.model.job import Job
from runner.model.path import PathEvidence, Side
from runner.model.run import LinkParameters

_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class SegmentSpec:
    """Both directions of one segment."""

    forward: LinkParameters
    return_: LinkParameters
    path: PathImpairments = NO_PATH_IMPAIRMENTS


@dataclass(frozen=True, kw_only=True)
class PathJob:
    """One job, ready to run. `sides`: those that run the path's image; `timeout` in seconds from the client's start.

    `files` is all that the server serves, `expected` what the client must have in /downloads at the end.
    """

    job: Job
    folder: Path
    client: EndpointSpec
    server: EndpointSpec
    sides: Mapping[Side, EndpointSpec]
    satellite: SegmentSpec
    ground: SegmentSpec
    seed: int
    timeout: float
    files: tuple[ServedFile, ...]
    expected: tuple[ServedFile, ...]
    evidence: PathEvidence  # for the judge
    server_port: int  # TCP, on which the server is ready
    controllers: Mapping[str, str] = field(default_factory=dict)  # TCP's congestion controller by role; cubic
    limits: Limits = _LIMITS
