"""One job over a real link, from the watchdogs to the evidence, which is written whatever happened."""

import mmap
import re
import secrets
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from runner import collect
from runner.engine.containers import Engine
from runner.errors import LaneError
from runner.inputs.inputs import Certificates
from runner.lanes.endpoint import Endpoint
from runner.lanes.experiment import (
    SERVER_GRACE_SECONDS,
    SERVER_READY_SECONDS,
    Experiment,
    Step,
    downloads_quota,
)
from runner.lanes.holders import CAPTURE_LIMIT
from runner.lanes.lane_base import together
from runner.lanes.request import LaneJob
from runner.lanes.served import Served
from runner.lanes.supervised import Bell
from runner.model.artifacts import Evidence
from runner.model.implementation import Role
from runner.model.real_link import LINK_DOWN, RealLink, RealLinkEvidence
from runner.remote import conditions
from runner.remote.probes import PROBE_BYTES, Exchange, parse, probe_period, settled
from runner.remote.reach import Reach
from runner.remote.station import Station
from runner.units import MIB

CLIENT_START = "client start"  # the stage from which on files may be on the link
BASELINE_SECONDS = 3.0  # of probes before and after the transfer, when nothing else is on the link
LINK_PATIENCE_SECONDS = 30.0  # that a link which is down before the transfer is given
LIFE_MARGIN = 150.0  # s beyond a job's time-out until the watchdogs end it
_CLIENT_AFTER_SERVER = 6.0  # s that a client gets to end when its server has died
_RECENT_PROBES = 15
_BEAT_SECONDS = 20.0
_DROPPED = re.compile(r"^(\d+) packets? dropped by kernel", re.MULTILINE)
_PROBES = 16 * MIB  # bytes of the times of probes
_LARGEST_FRAME = 2048  # bytes of a frame; paths of more than 1500 B are none of the internet's


class RealExperiment(Experiment):
    """A job while it runs. `run` is called once; `discard` removes what is left on the hosts."""

    def __init__(
        self,
        job: LaneJob,
        link: RealLink,
        *,
        reach: Reach,
        engines: Mapping[Role, Engine],
        served: Served,
        certificates: Certificates,
        bell: Bell,
        host: str,
        prefix: str,
    ) -> None:
        pool = ThreadPoolExecutor(8, thread_name_prefix="real")
        super().__init__(job, served=served, pool=pool, bell=bell)
        self._link, self._certificates = link, certificates
        self._to = reach.of(host)
        self._hosts = reach.hosts()
        name = f"{prefix}-{secrets.token_hex(3)}"
        self._at_client = Station(engines[Role.CLIENT], link.client, bell, endpoint=self._client, name=name)
        self._at_server = Station(engines[Role.SERVER], link.server, bell, endpoint=self._server, name=name)
        self._stations = (self._at_client, self._at_server)
        self._printed: dict[str, str] = {}
        self._exchanges: list[Exchange] = []
        self._over = threading.Event()

    def _steps(self) -> list[Step]:
        return [
            ("baseline after", self._probe_after),
            ("server stop", self._stop_server),
            ("captures", self._stop_sides),
            ("collect", self._collect),
        ]

    def _is_open(self) -> bool:
        return self._at_client.side is not None

    def _beat(self) -> None:
        """Tell the watchdogs every now and then that this runner lives."""
        number = 0
        while not self._over.wait(_BEAT_SECONDS):
            number += 1
            for station in self._stations:
                station.beat(number)

    def discard(self) -> None:
        """Remove everything of this job from both hosts. Raises LaneError when one can't be reached."""
        self._over.set()
        try:
            together(self._pool, *(station.discard for station in self._stations))
        finally:
            self._pool.shutdown(wait=False)

    def _open(self) -> None:
        """Watchdogs first; then captures and probes, endpoints made, and the link alone for a while."""
        job, link = self._job, self._link
        life = job.timeout + LIFE_MARGIN
        quotas = {"/logs": job.limits.logs, "/downloads": downloads_quota(job.files)}
        token, probe = secrets.token_hex(16), str(link.probe_port)
        common = (str(round(life)), token, probe)
        with self._stages.stage("watchdogs"):
            for station in self._stations:
                station.endpoint.find(station.engine)
            together(self._pool, *(lambda one=one: one.guard(life) for one in self._stations))
            threading.Thread(target=self._beat, name="beat", daemon=True).start()
        with self._stages.stage("captures and probes"):
            interfaces = self._interfaces()
            self._at_server.start_side(("server", *common, interfaces["server"], str(link.udp_port)), quotas=quotas)
            asking = (interfaces["client"], str(link.udp_port), self._to.address, f"{probe_period(link):.4f}")
            self._at_client.start_side(("client", *common, *asking), quotas=quotas)
            began = time.monotonic()
        with self._stages.stage("endpoints"):
            together(
                self._pool,
                lambda: self._create(self._at_client, quotas),
                lambda: self._create(self._at_server, quotas),
            )
        with self._stages.stage("baseline"):
            left = BASELINE_SECONDS + (self._to.rtt or 0.0) - (time.monotonic() - began)
            self._bell.wait(lambda: False, timeout=max(0.0, left))
            self._require_link()

    def _require_link(self) -> None:
        """Give a link that is down a while to come back. Raises LaneError `link` when it doesn't."""
        deadline = time.monotonic() + LINK_PATIENCE_SECONDS
        while True:
            self._copy_probes()
            if any(one.rtt is not None for one in self._exchanges[-_RECENT_PROBES:]):
                return
            if time.monotonic() > deadline:
                sent = len(self._exchanges)
                raise LaneError(LINK_DOWN, f"{self._link.name}: none of {sent} probes was answered before the transfer")
            self._bell.wait(lambda: False, timeout=BASELINE_SECONDS)

    def _create(self, station: Station, quotas: Mapping[str, int]) -> None:
        certificates = {f"/certs/{name}": content for name, content in self._certificates.files().items()}
        server = station.role is Role.SERVER
        station.create_endpoint(
            files=certificates,
            hosts=self._hosts,
            volumes=(self._served.www(self._job.files),) if server else (),
            udp_port=self._link.udp_port,
            quota=sum(quotas.values()),
        )

    def _start_server(self) -> bool:
        with self._stages.stage("server start"):
            self._server.start()
        with self._stages.stage("server ready"):
            self._server_ready = self._at_server.wait_until_ready(
                self._link.udp_port, self._to.address, timeout=SERVER_READY_SECONDS
            )
        return self._server_ready

    def _run_client(self) -> None:
        client, server, side = self._client.watched, self._server.watched, self._at_client.side
        assert side is not None, "_open() comes first"
        with self._stages.stage(CLIENT_START):
            self._client.start()
        with self._stages.stage("transfer"):
            self._bell.wait(lambda: client.ended or server.ended or side.ended, timeout=self._job.timeout)
            if server.ended and not client.ended:
                self._bell.wait(lambda: client.ended, timeout=_CLIENT_AFTER_SERVER)
            if not client.ended:
                self._client.timed_out = not server.ended and not side.ended
                self._client.stopped_by_us = not self._client.timed_out
                client.kill()
            for station in self._stations:
                station.require_side()

    def _probe_after(self) -> None:
        self._bell.wait(lambda: False, timeout=BASELINE_SECONDS + 1.5 * (self._to.rtt or 0.0))

    def _stop_server(self) -> None:
        if self._server.running is not None:
            self._server.stopped_by_us = self._server.running.terminate(grace=SERVER_GRACE_SECONDS)

    def _stop_sides(self) -> None:
        printed = [station.stop_side() for station in self._stations]
        dropped = [_DROPPED.search(text) for text in printed]
        if not all(dropped):
            raise LaneError(
                "captures-died", "A capture ended before its time.", printed=printed[dropped.index(None)][-2000:]
            )
        self._capture_drops = sum(int(match[1]) for match in dropped if match)

    def _collect(self) -> None:
        """Copy captures, probes, the endpoints' files; compare the downloads."""
        together(
            self._pool,
            lambda: self._copy_capture(self._at_client, "left.pcap"),
            lambda: self._copy_capture(self._at_server, "right.pcap"),
            self._copy_probes,
            *(lambda one=one: self._copy_printed(one) for one in self._stations),
            self._compare_downloads,
        )

    def _copy_capture(self, station: Station, name: str) -> None:
        blocks = station.archive("/side/capture.pcap", limit=CAPTURE_LIMIT)
        path = self._job.folder / "sim" / name
        collect.extract_file(blocks, path, budget=CAPTURE_LIMIT)
        self._require_datagrams(path, station.role.value)

    def _require_datagrams(self, path: Path, where: str) -> None:
        """Raises LaneError `offload` when a capture shows several datagrams as one: sizes and times would be wrong."""
        with path.open("rb") as file:
            if not path.stat().st_size:
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as capture:  # it may have a gigabyte
                largest = max(wire_lengths(capture), default=0)
        if largest > _LARGEST_FRAME:
            raise LaneError(
                "offload",
                f"The capture at the {where} has a frame of {largest} B: its network card joins datagrams. Run there "
                f"as root: `ethtool -K {self._interfaces()[where]} tx-udp-segmentation off gro off`.",
            )

    def _interfaces(self) -> dict[str, str]:
        return {"client": self._to.interface, "server": self._link.server_interface or self._to.server_interface}

    def _copy_probes(self) -> None:
        path = self._job.folder / "sim" / "probes.txt"
        blocks = self._at_client.archive("/side/probes.txt", limit=_PROBES)
        collect.extract_file(blocks, path, budget=_PROBES)
        self._exchanges = settled(parse(path.read_text(errors="replace")))

    def _copy_printed(self, station: Station) -> None:
        self._printed[station.role.value] = station.output()
        self._copy_logs(station.endpoint)

    def _archive(self, endpoint: Endpoint, path: str) -> Iterator[bytes]:
        station = next(station for station in self._stations if station.endpoint is endpoint)
        limit = downloads_quota(self._expected) if path == "/downloads" else self._job.limits.logs
        return station.archive(path, limit=limit)

    def _outputs(self) -> dict[str, str]:
        return dict(sorted(self._printed.items()))

    def _evidence(self) -> Evidence:
        client = self._client.running
        seen = conditions.judge(self._exchanges, client.final if client is not None else None)
        if seen.problem and (not self._error or self._error["code"] in (LINK_DOWN, "host-lost", "side-failed")):
            self._error = {"code": LINK_DOWN, "message": f"{self._link.name}: {seen.problem}"}
        self._client.clock_ahead = seen.clock.offset if seen.clock is not None else 0.0
        evidence = super()._evidence()
        server_is_here = self._link.server is None
        return replace(
            evidence,
            host_steal=evidence.host_steal if server_is_here else 0.0,
            cpu_pressure=evidence.cpu_pressure if server_is_here else None,
            real_link=RealLinkEvidence(
                name=self._link.name,
                server_address=self._to.address,
                family=self._to.family,
                interface=self._to.interface,
                udp_port=self._link.udp_port,
                translated=self._to.client != self._to.own if self._to.client and self._to.own else None,
                clock=seen.clock,
                before=seen.before,
                during=seen.during,
                after=seen.after,
                probe_data_rate=8 * (PROBE_BYTES + (20 if self._to.family == 6 else 0)) / probe_period(self._link),
                comment=self._link.comment,
            ),
        )


def wire_lengths(capture: bytes | mmap.mmap) -> Iterator[int]:
    """The lengths on the wire of a pcap's frames, little-endian as tcpdump writes it here (draft-ietf-opsawg-pcap)."""
    position = 24
    while position + 16 <= len(capture):
        _, _, held, length = struct.unpack_from("<IIII", capture, position)
        yield length
        position += 16 + held
