"""Makes the labelled set in virtual time: `python -m lab.labelled_virtual FOLDER [--only NAME,…]`.

The real code of `implementations/_misbehaving` runs in both roles in one process. The link is calculated, so no time is
spent waiting. Data rate, queue, delay, losses, marks, outage and fall of the MTU are those that sim/README.md defines.
Other load on the host has no effect, and the same seed gives packets of the same times and sizes. Only the set of
`lab.labelled` has real stacks and the effects of a scheduler. Needs aioquic
(runner/tests/requirements.txt).
"""

import asyncio
import importlib
import json
import multiprocessing
import os
import random
import selectors
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab.causes import MISBEHAVING, Labelled, labelled, recorded
from lab.labelled import TIMEOUT, case_of, choose, jobs_of, options_of
from lab.rewrite import RAW, Record, write_pcap
from runner.decode import cached_decode
from runner.errors import BentpipeError, SetupError
from runner.inputs.inputs import certificates
from runner.model.link import LinkParameters
from runner.model.result import DirectionTruth, EndpointRecord, Evidence, Outcome, Result
from runner.model.run import CaseRecord, Job, Run, job_seed
from runner.paths import ROOT
from runner.store.runs import RunFolder, save_evidence
from runner.trace.handshake import CE, ECT0, NOT_ECT

_SOURCE = ROOT / "implementations" / f"_{MISBEHAVING}" / "source"
_SEED = 7
_HEADERS = 28  # bytes of IPv4 and UDP
_MTU = 1500
_ADDRESS = {"client": "193.167.0.100", "server": "193.167.100.100"}
_CLIENT_PORT, _SERVER_PORT = 40_001, 443
_FAR = {"client": "server", "server": "client"}
_EPOCH = 1_700_000_000  # s; an arbitrary Unix time for the captures
_INSTANT = 2e-6  # s that every turn of the loop takes, so that no timer can stop the clock
_COUNTS = [name for name in DirectionTruth.__dataclass_fields__ if not name.startswith("queue")]


@dataclass(frozen=True)
class Datagram:
    """One UDP datagram between the endpoints."""

    sender: str
    source: int
    target: int
    data: bytes
    ecn: int

    @property
    def size(self) -> int:
        """Bytes of the IP packet."""
        return len(self.data) + _HEADERS

    def packet(self) -> bytes:
        """The IP packet, with checksums of 0."""
        ends = [bytes(map(int, _ADDRESS[role].split("."))) for role in (self.sender, _FAR[self.sender])]
        head = struct.pack(">BBHHHBBH4s4s", 0x45, self.ecn, self.size, 0, 0x4000, 64, 17, 0, *ends)
        return head + struct.pack(">HHHH", self.source, self.target, self.size - 20, 0) + self.data


@dataclass
class Direction:
    """One direction of the link, with counts of its packets."""

    parameters: LinkParameters
    random: random.Random
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    _free: float = 0.0
    _waiting: list[float] = field(default_factory=list)
    """For each packet in the queue, the time when its transmission begins."""

    def passes(self, datagram: Datagram, now: float) -> tuple[float, Datagram] | None:
        """Pass a packet on. Returns the arrival time and the packet as it arrives; None when it never arrives."""
        link, more = self.parameters, self.parameters.impairments
        self._waiting = [time for time in self._waiting if time > now]
        waiting = len(self._waiting)
        if waiting >= link.queue_packets:
            self.counts["dropped_queue"] += 1
            return None
        begin = max(now, self._free)
        self._free = begin + 8 * datagram.size / link.data_rate
        self._waiting += [begin] if begin > now else []
        number = self.counts["packets_in"]
        if self.random.random() < link.loss or any(first <= number <= last for first, last in more.loss_list):
            self.counts["dropped_loss"] += 1
            return None
        if datagram.ecn == ECT0 and 0 < more.mark_packets <= waiting:
            self.counts["marked"] += 1
            datagram = Datagram(datagram.sender, datagram.source, datagram.target, datagram.data, CE)
        return self._free + link.delay, datagram


class Network:
    """Both directions, the captures, and the listeners by address."""

    def __init__(self, record: CaseRecord, seed: int, clock: asyncio.AbstractEventLoop) -> None:
        self._record, self._clock = record, clock
        chance = random.Random(seed)
        self.directions = {"server": Direction(record.forward, chance), "client": Direction(record.return_, chance)}
        self.captures: dict[str, list[tuple[float, Datagram]]] = {"client": [], "server": []}
        self.listeners: dict[tuple[str, int], Callable[[Datagram], None]] = {}
        self._anchor: float | None = None

    def send(self, datagram: Datagram) -> None:
        """Send a datagram from an endpoint into the link."""
        now, direction = self._clock.time(), self.directions[datagram.sender]
        self.captures[datagram.sender].append((now, datagram))
        direction.counts["packets_in"] += 1
        direction.counts["bytes_in"] += datagram.size
        if self._anchor is None and not datagram.data[0] & 0x80:
            self._anchor = now
        if reason := self._drop_reason(datagram, now):
            direction.counts[reason] += 1
            return
        passed = direction.passes(datagram, now)
        if passed is not None:
            self._clock.call_at(passed[0], self._arrive, passed[1])

    def _drop_reason(self, datagram: Datagram, now: float) -> str:
        """The counter of the impairment of the path that drops the datagram; empty when none drops it."""
        path, since = self._record.impairments, now - (now if self._anchor is None else self._anchor)
        outage, fall = path.outage, path.mtu_fall
        if outage is not None and self._anchor is not None and 0 <= since - outage.start < outage.duration:
            return "dropped_outage"
        fallen = fall is not None and self._anchor is not None and since >= fall.start
        longest = fall.size if fall is not None and fallen else _MTU
        return "dropped_mtu" if datagram.size > longest else ""

    def _arrive(self, datagram: Datagram) -> None:
        far, counts = _FAR[datagram.sender], self.directions[datagram.sender].counts
        counts["packets_out"] += 1
        counts["bytes_out"] += datagram.size
        self.captures[far].append((self._clock.time(), datagram))
        if listener := self.listeners.get((far, datagram.target)):
            listener(datagram)

    def truth(self) -> dict[str, object]:
        """The content of `truth.json`; lateness is 0."""
        none = {"p50": 0.0, "p99": 0.0, "p999": 0.0, "max": 0.0, "count": 1}
        ways = {name: self.directions[role].counts for name, role in (("forward", "server"), ("return", "client"))}
        queue = {"queue_max_packets": 0, "queue_mean_packets": 0.0, "send_errors": 0}
        return {
            "seed": _SEED,
            "clock_step_s": 0.0,
            "first_1rtt_s": self._anchor,
            "lateness_s": none,
            "receive_lateness_s": none,
            "sockets": {},
            **{name: {**counts, **queue} for name, counts in ways.items()},
        }


class _Instantly(selectors.SelectSelector):
    """A selector that moves the clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the transfer has not ended, but no timer and no packet is left")
        self.now += max(timeout, 0.0) + _INSTANT
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that moves its own clock instead of waiting."""

    def __init__(self) -> None:
        self._instantly = _Instantly()
        super().__init__(self._instantly)

    def time(self) -> float:
        return self._instantly.now

    async def getaddrinfo(self, *_: Any, **__: Any) -> list[Any]:
        return [(0, 0, 0, "", (_ADDRESS["server"], _SERVER_PORT))]

    def add_signal_handler(self, *_: Any) -> None:  # type: ignore[override]
        """Do nothing: no signal is sent in this process."""


class Endpoints:
    """Both roles of misbehaving, with the calculated network instead of their sockets. Make only one instance per
    process, because it changes modules."""

    def __init__(self, transfer: Labelled, folder: Path, network: Network) -> None:
        sys.path.insert(0, str(_SOURCE))
        self._transfer, self._folder, self._network = transfer, folder, network
        self._modules: dict[str, Any] = {role: importlib.import_module(role) for role in _FAR}
        self._settings = importlib.import_module("settings").Settings
        self._modules["server"].SERVED, self._modules["client"].DOWNLOADS = folder, folder / "downloads"
        (folder / "downloads").mkdir()
        (folder / "file").write_bytes(random.Random(_SEED).randbytes(transfer.size))
        for role, module in self._modules.items():
            module.Wire = self._wire(role)
        self._use_certificates()

    def _use_certificates(self) -> None:
        configuration = importlib.import_module("aioquic.quic.configuration").QuicConfiguration
        for name, content in certificates().files().items():
            (self._folder / name).write_bytes(content)
        chain, verify = configuration.load_cert_chain, configuration.load_verify_locations
        places = [self._folder / name for name in ("cert.pem", "priv.key", "ca.pem")]
        configuration.load_cert_chain = lambda configured, *_: chain(configured, *places[:2])
        configuration.load_verify_locations = lambda configured, **_: verify(configured, cafile=str(places[2]))

    def _wire(self, role: str) -> type:
        base, acks, network = importlib.import_module("wire").Wire, importlib.import_module("acks"), self._network

        class VirtualSocket:
            def __init__(self, port: int, ecn: int) -> None:
                self._port, self._ecn = port, ecn

            def sendto(self, data: bytes, address: tuple[Any, ...]) -> None:
                network.send(Datagram(role, self._port, address[1], bytes(data), self._ecn))

        class VirtualWire(base):  # type: ignore[misc, valid-type]
            def _open(self, port: int) -> VirtualSocket:
                port = port or _CLIENT_PORT
                network.listeners[role, port] = self._take
                return VirtualSocket(port, ECT0 if self._marked else NOT_ECT)

            def _take(self, datagram: Datagram) -> None:
                acks.Acknowledgements.arriving = datagram.ecn
                self._deliver(datagram.data, (f"::ffff:{_ADDRESS[datagram.sender]}", datagram.source, 0, 0))

            def close(self) -> None:
                """Do nothing: no socket is open."""

        return VirtualWire

    def _setting(self, role: str) -> Any:
        requested = {"server": self._transfer.server, "client": self._transfer.client}[role]
        os.environ.update(
            {
                "TESTCASE": self._transfer.wire,
                "REQUESTS": "https://server4:443/file",
                "SSLKEYLOGFILE": str(self._folder / f"{role}.log"),
                f"{role.upper()}_PARAMS": requested,
            }
        )
        settings = self._settings.from_environment(role)
        settings.change_modules()
        return settings

    async def transfer(self) -> int | None:
        """Run a transfer. Returns the client's exit code; None when it did not end in time."""
        server = asyncio.ensure_future(self._modules["server"].main(self._setting("server")))
        try:
            await asyncio.sleep(_INSTANT)
            code: int = await asyncio.wait_for(self._modules["client"].main(self._setting("client")), TIMEOUT)
        except TimeoutError:
            return None
        finally:
            server.cancel()
        return code


def run_one(transfer: Labelled, job: Job, run: RunFolder) -> None:
    """Run one job, and write its tables, truth, evidence and result to its folder."""
    loop = VirtualLoop()
    network = Network(case_of(transfer).record(), job_seed(_SEED, job), loop)
    artifacts = run.artifacts(job)
    shutil.rmtree(artifacts.folder, ignore_errors=True)
    artifacts.link_truth.parent.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        code = loop.run_until_complete(Endpoints(transfer, folder, network).transfer())
        for role, tables in (("client", artifacts.client_tables), ("server", artifacts.server_tables)):
            records = [
                Record(_EPOCH * 10**9 + round(time * 1e9), datagram.packet())
                for time, datagram in network.captures[role]
            ]
            capture = write_pcap(folder / f"{role}.pcap", records, link_type=RAW)
            cached_decode(capture, [folder / "client.log"], tables, kernel_drops=0)
    artifacts.link_truth.write_text(json.dumps(network.truth(), indent=1, sort_keys=True))
    ends = EndpointRecord(image="", image_id="", exit_code=code, timed_out=code is None)
    evidence = Evidence(
        started_unix_s=_EPOCH,
        wall_s=loop.time(),
        transfer_s=loop.time(),
        stages_s={},
        client=ends,
        server=EndpointRecord(image="", image_id=""),
        server_ready=True,
        files=(),
        capture_drops=0,
    )
    save_evidence(artifacts, evidence)
    outcome = Outcome.SUCCEEDED if code == 0 else Outcome.FAILED
    run.save_result(Result(outcome=outcome, transfer_s=loop.time(), captures_kept=False, **asdict(job)))


def make(path: Path, chosen: tuple[Labelled, ...]) -> None:
    """Make all chosen jobs, each in its own process. Jobs with a stack other than misbehaving are left out."""
    able = [
        transfer for transfer in chosen if transfer.server_variant.stack == transfer.client_variant.stack == MISBEHAVING
    ]
    jobs = [(transfer, job) for transfer in able for job in jobs_of(transfer)]
    run = RunFolder(
        path,
        Run(
            name=path.name,
            started_unix_s=_EPOCH,
            bentpipe_version="",
            host={"name": "virtual time"},
            seed=_SEED,
            shuffled=False,
            clients=(),
            servers=(),
            cases={transfer.name: case_of(transfer).record() for transfer in (*labelled(), *recorded())},
            implementations={},
            order=tuple(job for _, job in jobs),
        ),
    )
    run.save_run(run.run)
    fork = multiprocessing.get_context("fork")
    for number, (transfer, job) in enumerate(jobs, start=1):
        process = fork.Process(target=run_one, args=(transfer, job, run))
        process.start()
        process.join()
        if process.exitcode:
            raise SetupError(f"{transfer.name} could not be made: its process ended with {process.exitcode}.")
        print(f"{number}/{len(jobs)} {transfer.name} #{job.iteration}", flush=True)


def main(arguments: list[str]) -> int:
    """Make the set. Returns 0 when every job was made."""
    options = options_of("labelled_virtual").parse_args(arguments)
    try:
        make(options.folder, choose(options.only, options.part))
    except BentpipeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
