"""`doctor --link`: measures the emulated link with our own endpoints, in one lane and in several lanes at once."""

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
from runner.images import building, images
from runner.images.images import Image
from runner.lanes.lanes import Lanes
from runner.lanes.request import EndpointSpec, LaneJob
from runner.model.artifacts import Artifacts
from runner.model.check import Check
from runner.model.job import Job
from runner.model.link_record import LinkParameters, LinkRecord
from runner.model.topology import Topology
from runner.units import format_data_rate

IMAGE = Image(tag="bentpipe/selftest", context=images.ROOT / "sim" / "selftest")
FORWARD_RATE, RETURN_RATE = 20_000_000, 2_000_000  # bit/s, thesis table 4.3
DELAY = 0.3  # s, each way
ECHO_LENGTH = 84  # bytes of IP
RTT_ERROR = 0.001  # s
RATE_ERROR = 0.01
LOSS = 0.01
QUANTILE_99 = 2.576  # two-sided, of the normal distribution

_QUEUE = 125  # packets
_TIMEOUT = 60.0
_MEND = (
    "Give the simulator more CPU: fewer lanes (`--lanes`), no other work on this host, one core for each lane at least."
)


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The server's traffic to the client: bit/s of IP bytes, bytes per packet with IP header, number of packets."""

    echoes: int
    rate: float
    ip_length: int
    count: int


# Above the data rate, so that the link decides what arrives; below it, so that only the loss model drops.
RATE_FLOW = Flow(echoes=10, rate=1.3 * FORWARD_RATE, ip_length=1500, count=8_000)
LOSS_FLOW = Flow(echoes=1, rate=0.1 * FORWARD_RATE, ip_length=200, count=10_000)


def selftest(*, lanes: int, progress: Callable[[str], None]) -> list[Check]:
    """Measure RTT, data rate and loss on the satellite link, in one lane and in `lanes` at once, about 30 s each.

    RTT must be within RTT_ERROR of delay plus serialisation (median of the echoes), the data rate within
    RATE_ERROR, the loss within its 99 % interval. Raises SetupError when no lanes can be made.
    """
    client = engine.client()
    progress("building the measuring endpoint")
    building.build(client, [*images.images_of([]), IMAGE], report=lambda _: None)
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

        def one(number: int) -> list[dict[str, Any]]:
            start.wait()
            flows = ((RATE_FLOW, 0.0), (LOSS_FLOW, LOSS))
            return [_job(opened, Path(folder), number, flow, loss) for flow, loss in flows]

        try:
            measured = list(pool.map(one, range(1, lanes + 1)))
        except LaneError as error:
            return [Check(name=_name("link", lanes), ok=False, what=str(error), mend="Run `./bentpipe doctor`.")]
    rates, losses = [lane[0] for lane in measured], [lane[1] for lane in measured]
    return [_rtt(lanes, rates), _rate(lanes, rates), _loss(lanes, losses)]


def _job(lanes: Lanes, folder: Path, number: int, flow: Flow, loss: float) -> dict[str, Any]:
    """Run one flow in a free lane. Returns the client's record, with the link's counts under `truth`."""
    own = folder / f"{number}-{loss}"
    own.mkdir()
    environment = {"TESTCASE": "measure", "CLIENT_PARAMS": json.dumps(vars(flow))}
    evidence = lanes.run(
        LaneJob(
            job=Job(server="selftest", client="selftest", case="measure", iteration=number),
            folder=own,
            client=EndpointSpec(image=IMAGE.tag, environment=environment),
            server=EndpointSpec(image=IMAGE.tag, environment={"TESTCASE": "measure"}),
            topology=Topology(
                link=LinkRecord.single(
                    "selftest",
                    LinkParameters(data_rate=FORWARD_RATE, delay=DELAY, queue_packets=_QUEUE, loss=loss),
                    LinkParameters(data_rate=RETURN_RATE, delay=DELAY, queue_packets=_QUEUE, loss=0.0),
                )
            ),
            seed=number,
            timeout=_TIMEOUT,
            files=(),
            wait_for_server=False,
        )
    )
    if evidence.error:
        raise LaneError(evidence.error["code"], evidence.error["message"])
    written = own / "client" / "measured.json"
    if not written.is_file():
        output = Artifacts(own).output_log
        last = output.read_text().strip().splitlines()[-1:] if output.is_file() else []
        why = "".join(last) or f"exit code {evidence.client.exit_code}"
        raise LaneError("selftest", f"The measuring client wrote nothing down: {why}")
    truth = json.loads(Artifacts(own).link_truth.read_text())
    found: dict[str, Any] = json.loads(written.read_text())
    return found | {"truth": truth["forward"]}


def _rtt(lanes: int, measured: list[dict[str, Any]]) -> Check:
    ideal = 2 * DELAY + ECHO_LENGTH * 8 / FORWARD_RATE + ECHO_LENGTH * 8 / RETURN_RATE
    errors = [statistics.median(one["rtt_samples_s"]) - ideal for one in measured if one["rtt_samples_s"]]
    worst = max(errors, key=abs, default=float("inf"))
    return Check(
        name=_name("RTT", lanes),
        ok=len(errors) == lanes and abs(worst) <= RTT_ERROR,
        what=f"{worst * 1e3:+.2f} ms on {ideal * 1e3:.2f} ms",
        mend=_MEND,
    )


def _rate(lanes: int, measured: list[dict[str, Any]]) -> Check:
    rates = [one["flow"].get("rate_bps", 0.0) for one in measured]
    worst = max((rate / FORWARD_RATE - 1 for rate in rates), key=abs)
    return Check(
        name=_name("data rate", lanes),
        ok=abs(worst) <= RATE_ERROR,
        what=f"{worst:+.3%} on {format_data_rate(FORWARD_RATE)}",
        mend=_MEND,
    )


def _loss(lanes: int, measured: list[dict[str, Any]]) -> Check:
    """Compares the packets that the link dropped with those that didn't arrive: a starved receiver loses packets,
    too."""
    half = QUANTILE_99 * (LOSS * (1 - LOSS) / LOSS_FLOW.count) ** 0.5
    fractions = [one["truth"]["dropped_loss"] / one["truth"]["packets_in"] for one in measured]
    worst = max(fractions, key=lambda fraction: abs(fraction - LOSS))
    missing = max(LOSS_FLOW.count - one["flow"].get("received", 0) - one["truth"]["dropped_loss"] for one in measured)
    starved = f"; {missing} more lost by an endpoint that waited for a CPU" if missing > 0 else ""
    return Check(
        name=_name("loss", lanes),
        ok=abs(worst - LOSS) <= half and missing <= 0,
        what=f"{worst:.2%} of {LOSS_FLOW.count} packets, expected {LOSS:.2%} ± {half:.2%}{starved}",
        mend=_MEND,
    )


def _name(what: str, lanes: int) -> str:
    return f"{what}, {lanes} lane{'s' if lanes > 1 else ''}"
