"""Measurements: a 10 MiB file over one connection, or over each of two connections, in several iterations."""

from dataclasses import replace

from runner.model.link import LinkRecord
from runner.model.run import Kind
from runner.model.stack import HTTP09, HTTP3, PROTOCOLS, UPLOAD
from runner.units import MIB
from testcases import checks
from testcases.base import MEASURED_FILE, Case, Check
from testcases.links import ASTRA, DEFAULT, EUTELSAT, SAT, SATLOSS, STARLINK, TERRESTRIAL
from testcases.resumption import second_is_resumed
from testcases.zerortt import requests_went_early


def measurement(
    name: str,
    abbreviation: str,
    description: str,
    link: LinkRecord,
    *,
    timeout: float,
    iterations: int = 10,
    size: int = MEASURED_FILE,
    beside: str = "",
) -> Case:
    """A transfer of `size` bytes over `link`, in several iterations; `beside`: the second flow, empty for none.

    TESTCASE is `transfer`, so that no image can treat a measurement in a special way.

    A pair whose only common protocol is HTTP/3 is measured over HTTP/3, with the TESTCASE `http3`. A pair of stacks
    over TCP is measured over HTTP/2 or HTTP/1.1, with the TESTCASE `h2` or `h1`. The result names the protocol.
    """
    return Case(
        name=name,
        abbreviation=abbreviation,
        kind=Kind.MEASUREMENT,
        description=description,
        wire_name="transfer",
        link=link,
        files=(size,),
        checks=(checks.files_are_equal, checks.Handshakes(1), checks.alpn_of_job),
        timeout=timeout,
        iterations=iterations,
        over_tcp=checks.OVER_TCP,
        protocols=PROTOCOLS,
        beside=beside,
    )


def repeated(name: str, abbreviation: str, description: str, wire_name: str, *how: Check) -> Case:
    """A file over a first connection, then another one over a second connection that resumes the session of the first
    (draft-kuhn-quic-4-sat-07 §4.3, §4.4, §4.6). TESTCASE is `wire_name`; `how`: what the second connection must be.

    The contract has no pause between the two: the draft's 5 s and 10 s would only matter to a stack whose knowledge of
    the path ages.
    """
    once = measurement(name, abbreviation, description, SAT, timeout=240.0)
    return replace(
        once,
        wire_name=wire_name,
        files=2 * once.files,
        checks=(checks.files_are_equal, checks.Handshakes(2), checks.alpn_of_job, *how),
        over_tcp=(),
        protocols=(HTTP09,),
    )


# The three before the repeated ones need a real link (`--link`).
CASES = (
    measurement(
        "goodput", "G", "10 MiB on the public runner's link: 10 Mbit/s both ways, 30 ms RTT.", DEFAULT, timeout=60.0
    ),
    measurement(
        "crosstraffic",
        "C",
        "25 MiB on the public runner's link, beside a download that starts at the same time.",
        DEFAULT,
        timeout=180.0,
        iterations=5,
        size=25 * MIB,
        beside="tcp-cubic",
    ),
    measurement(
        "terrestrial", "T", "10 MiB on a terrestrial link: 20 Mbit/s both ways, 30 ms RTT.", TERRESTRIAL, timeout=60.0
    ),
    measurement(
        "sat", "SAT", "10 MiB over a geostationary satellite: 20/2 Mbit/s, 600 ms RTT, no loss.", SAT, timeout=120.0
    ),
    measurement(
        "satloss",
        "SATL",
        "10 MiB over a geostationary satellite that loses 1 % of the packets both ways.",
        SATLOSS,
        timeout=720.0,  # NewReno needs about ten minutes at this loss
    ),
    measurement(
        "eutelsat",
        "EUT",
        "10 MiB over a geostationary Eutelsat access: 50/5 Mbit/s advertised.",
        EUTELSAT,
        timeout=120.0,
        iterations=5,
    ),
    measurement(
        "astra",
        "AST",
        "10 MiB over a geostationary Astra access: 20/2 Mbit/s advertised.",
        ASTRA,
        timeout=120.0,
        iterations=5,
    ),
    measurement(
        "starlink",
        "STL",
        "10 MiB over a Starlink access: 150/150 Mbit/s advertised.",
        STARLINK,
        timeout=120.0,
        iterations=5,
    ),
    repeated(
        "repeat-resumption",
        "RR",
        "10 MiB over a geostationary satellite, and 10 MiB more over a second connection, which resumes the session.",
        "resumption",
        second_is_resumed,
    ),
    repeated(
        "repeat-zerortt",
        "RZ",
        "10 MiB over a geostationary satellite, and 10 MiB more over a second connection, asked for in 0-RTT.",
        "zerortt",
        requests_went_early,
    ),
    # draft-kuhn-quic-4-sat-07 §4.1
    replace(
        measurement(
            "upload",
            "UP",
            "The client sends 10 MiB over the 2 Mbit/s of a geostationary satellite's return link.",
            SAT,
            timeout=240.0,
        ),
        wire_name=UPLOAD,
        upload=True,
        over_tcp=(),
        protocols=(HTTP3,),
    ),
)
