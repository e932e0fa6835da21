"""`doctor --link`: measures the emulated link with endpoints of this project, in one lane and in several lanes at the
same time."""

import json
import statistics
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.engine import engine
from runner.errors import LaneError
from runner.images import images
from runner.images.images import Image, build
from runner.model.link import LinkParameters, LinkRecord, Topology
from runner.model.result import Artifacts
from runner.model.run import Check, Job
from runner.paths import ROOT
from runner.places.guests.guests import GuestHost
from runner.places.lane_job import EndpointSpec, LaneJob
from runner.places.lanes.lanes import Lanes
from runner.units import format_data_rate

IMAGE = Image(tag="bentpipe/selftest", context=ROOT / "sim" / "selftest")
FORWARD_RATE, RETURN_RATE = 20_000_000, 2_000_000  # bit/s, thesis table 4.3
DELAY = 0.3  # s, each way
ECHO_LENGTH = 84  # bytes of IP
RTT_ERROR = 0.001  # s
RATE_ERROR = 0.01
LOSS = 0.01
QUANTILE_99 = 2.576  # two-sided, of the normal distribution

_QUEUE = 125  # packets
_TIMEOUT = 60.0
_FIX = (
    "Give the simulator more CPU: fewer lanes (`--lanes`), at least one core for each lane, no other work on this host."
)


@dataclass(frozen=True, kw_only=True)
class TestFlow:
    """The number of the client's echoes, and the server's traffic to the client: its rate in bit/s of IP bytes, the
    bytes of a packet with IP header, the number of packets, their ECN field. `each`: every packet that arrives is
    recorded."""

    echoes: int
    rate: float
    ip_length: int
    count: int
    ecn: int = 0
    each: bool = False


# RATE_FLOW exceeds the data rate, so that the link limits the packets that arrive. LOSS_FLOW stays below it, so that
# only the loss model drops packets.
RATE_FLOW = TestFlow(echoes=10, rate=1.3 * FORWARD_RATE, ip_length=1500, count=8_000)
LOSS_FLOW = TestFlow(echoes=1, rate=0.1 * FORWARD_RATE, ip_length=200, count=10_000)


def selftest(*, lanes: int, progress: Callable[[str], None]) -> list[Check]:
    """Measure RTT, data rate and loss on the satellite link, in one lane and then in `lanes` lanes at the same time.
    Each of the two measurements takes about 30 s.

    RTT must be within RTT_ERROR of delay plus serialisation (median of the echoes), the data rate within
    RATE_ERROR, the loss within its 99 % interval. Raises SetupError when no lanes can be made.
    """
    client = engine.client()
    progress("building the measuring endpoint")
    build(client, [*images.images_of([]), IMAGE], report=lambda _: None)
    checks = []
    for number in sorted({1, lanes}):
        progress(f"measuring in {number} lane{'s' if number > 1 else ''}")
        checks += _measure(number)
    return checks


def _measure(lanes: int) -> list[Check]:
    with (
        tempfile.TemporaryDirectory(prefix="bentpipe-selftest-") as folder,
        Lanes.open("selftest", lanes=lanes) as opened,
        ThreadPoolExecutor(lanes) as pool,
    ):
        start = threading.Barrier(lanes)

        def measure(number: int) -> list[dict[str, Any]]:
            start.wait()
            flows = ((RATE_FLOW, 0.0), (LOSS_FLOW, LOSS))
            return [
                measure_flow(opened, Path(folder) / f"{number}-{loss}", _link(loss), flow, seed=number)
                for flow, loss in flows
            ]

        try:
            measured = list(pool.map(measure, range(1, lanes + 1)))
        except LaneError as error:
            return [Check(name=_name("link", lanes), ok=False, what=str(error), fix="Run `./bentpipe doctor`.")]
    rates, losses = [lane[0] for lane in measured], [lane[1] for lane in measured]
    return [_rtt(lanes, rates), _rate(lanes, rates), _loss(lanes, losses)]


def _link(loss: float) -> LinkRecord:
    return LinkRecord.single(
        "selftest",
        LinkParameters(data_rate=FORWARD_RATE, delay=DELAY, queue_packets=_QUEUE, loss=loss),
        LinkParameters(data_rate=RETURN_RATE, delay=DELAY, queue_packets=_QUEUE, loss=0.0),
    )


def measure_flow(
    place: Lanes | GuestHost, folder: Path, link: LinkRecord, flow: TestFlow, *, seed: int
) -> dict[str, Any]:
    """Run one flow over `link` in a free lane or a guest. Returns the client's record, with the link's counts of the
    forward direction under `truth`. `folder` does not exist yet."""
    folder.mkdir()
    environment = {"TESTCASE": "measure", "CLIENT_PARAMS": json.dumps(vars(flow))}
    evidence = place.run(
        LaneJob(
            job=Job(server="selftest", client="selftest", case="measure", iteration=1),
            folder=folder,
            client=EndpointSpec(image=IMAGE.tag, environment=environment),
            server=EndpointSpec(image=IMAGE.tag, environment={"TESTCASE": "measure"}),
            topology=Topology(link=link),
            seed=seed,
            timeout=_TIMEOUT,
            files=(),
            wait_for_server=False,
            own_server=True,  # a flow over a fast link exceeds the limit for a stack's server
        )
    )
    if evidence.error:
        raise LaneError(evidence.error["code"], evidence.error["message"])
    record = folder / "client" / "measured.json"
    if not record.is_file():
        output = Artifacts(folder).output_log
        last = output.read_text().strip().splitlines()[-1:] if output.is_file() else []
        why = "".join(last) or f"exit code {evidence.client.exit_code}"
        raise LaneError("selftest", f"The measuring client wrote no result: {why}")
    truth = json.loads(Artifacts(folder).link_truth.read_text())
    report: dict[str, Any] = json.loads(record.read_text())
    return report | {"truth": truth["forward"]}


def _rtt(lanes: int, measured: list[dict[str, Any]]) -> Check:
    ideal = 2 * DELAY + ECHO_LENGTH * 8 / FORWARD_RATE + ECHO_LENGTH * 8 / RETURN_RATE
    errors = [statistics.median(lane["rtt_samples_s"]) - ideal for lane in measured if lane["rtt_samples_s"]]
    worst = max(errors, key=abs, default=float("inf"))
    return Check(
        name=_name("RTT", lanes),
        ok=len(errors) == lanes and abs(worst) <= RTT_ERROR,
        what=f"{worst * 1e3:+.2f} ms on {ideal * 1e3:.2f} ms",
        fix=_FIX,
    )


def _rate(lanes: int, measured: list[dict[str, Any]]) -> Check:
    rates = [lane["flow"].get("rate_bps", 0.0) for lane in measured]
    worst = max((rate / FORWARD_RATE - 1 for rate in rates), key=abs)
    return Check(
        name=_name("data rate", lanes),
        ok=abs(worst) <= RATE_ERROR,
        what=f"{worst:+.3%} on {format_data_rate(FORWARD_RATE)}",
        fix=_FIX,
    )


def _loss(lanes: int, measured: list[dict[str, Any]]) -> Check:
    """Compare the packets that the link dropped with the missing packets: a receiver without CPU time loses packets,
    too."""
    half = QUANTILE_99 * (LOSS * (1 - LOSS) / LOSS_FLOW.count) ** 0.5
    fractions = [lane["truth"]["dropped_loss"] / lane["truth"]["packets_in"] for lane in measured]
    worst = max(fractions, key=lambda fraction: abs(fraction - LOSS))
    missing = max(
        LOSS_FLOW.count - lane["flow"].get("received", 0) - lane["truth"]["dropped_loss"] for lane in measured
    )
    starved = f"; {missing} more lost by an endpoint that waited for a CPU" if missing > 0 else ""
    return Check(
        name=_name("loss", lanes),
        ok=abs(worst - LOSS) <= half and missing <= 0,
        what=f"{worst:.2%} of {LOSS_FLOW.count} packets, expected {LOSS:.2%} ± {half:.2%}{starved}",
        fix=_FIX,
    )


def _name(quantity: str, lanes: int) -> str:
    return f"{quantity}, {lanes} lane{'s' if lanes > 1 else ''}"
