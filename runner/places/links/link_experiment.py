"""One job over a real link, from the watchdogs to the evidence. The evidence is written in any case."""

import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from runner.engine.containers import Engine
from runner.errors import LaneError
from runner.inputs.inputs import Certificates
from runner.model.link import LINK_DOWN, RealLink, RealLinkEvidence, RemoteHost
from runner.model.result import Evidence
from runner.model.stack import Box, Role
from runner.places.experiment import SERVER_READY_SECONDS, Endpoint, Step, TimedExperiment, downloads_quota
from runner.places.lane_job import LaneJob
from runner.places.lanes.lane import together
from runner.places.links.link_end import CONTRACT_PORT, CollectedOfJob, LinkEnd, RoutedEnd, Way
from runner.places.links.reach import (
    PROBE_BYTES,
    ProbeExchange,
    Reach,
    judge,
    parse,
    probe_period,
    require_datagrams,
    settled,
)
from runner.places.supervised import CAPTURE_LIMIT, Bell, Served
from runner.store import collect
from runner.units import MIB

CLIENT_START = "client start"  # from this stage on, files may cross the link
BASELINE_SECONDS = 3.0  # seconds before and after the transfer in which the link carries only probes
LINK_PATIENCE_SECONDS = 30.0  # seconds in which a link must come up before the transfer
LIFE_MARGIN = 150.0  # seconds after a job's time-out until the watchdogs end it
_CLIENT_AFTER_SERVER = 6.0  # seconds in which a client must end after the end of its server
_RECENT_PROBES = 15
_LINES = 3  # lines of an endpoint's output in an error message
_BEAT_SECONDS = 20.0
_DROPPED = re.compile(r"^(\d+) packets? dropped by kernel", re.MULTILINE)
_PROBES = 16 * MIB  # most bytes of the file with the probes' times


class RealExperiment(TimedExperiment):
    """A job while it runs. `run` is called once; `discard` removes everything that is left on the hosts."""

    listen_look = 0.25  # longer than in lanes, because SSH may use the link

    def __init__(
        self,
        job: LaneJob,
        link: RealLink,
        *,
        reach: Reach,
        engines: Mapping[Role, Engine],
        served: Served,
        certificates: Certificates,
        box_keys: Mapping[str, bytes],
        collected: CollectedOfJob,
        bell: Bell,
        host: str,
        prefix: str,
    ) -> None:
        """`box_keys`: the files of the boxes' /keys, by name. `host`: the host name of the server in the case's
        URLs."""
        pool = ThreadPoolExecutor(8, thread_name_prefix="real")
        super().__init__(job, served=served, pool=pool, bell=bell)
        self._link, self._certificates = link, certificates
        self._fingerprints = certificates.fingerprints
        self._box_keys = {f"/keys/{name}": content for name, content in box_keys.items()}
        kind = end_kind(job)
        self._to = reach.of(kind.host_name(host))
        self._hosts = reach.hosts()
        if self._to.family not in kind.families:
            raise LaneError("no-address", f"{link.name} has no IPv4, over which middleboxes and TCP cross a real link.")
        name = f"{prefix}-{secrets.token_hex(3)}"

        def end(endpoint: Endpoint, at: RemoteHost | None, box: Box) -> LinkEnd:
            return kind(
                engines[Role(endpoint.role.value)],
                at,
                bell,
                endpoint=endpoint,
                name=name,
                collected=collected,
                way=self._way(),
                box=self._boxes.get(box),
            )

        self._at_client = end(self._client, link.client, Box.TERMINAL)
        self._at_server = end(self._server, link.server, Box.GATEWAY)
        self._ends = (self._at_client, self._at_server)
        self._printed: dict[str, str] = {}
        self._exchanges: list[ProbeExchange] = []
        self._over = threading.Event()

    def _links(self) -> Sequence[str]:
        return ("sim",)

    def _steps(self) -> list[Step]:
        return [
            ("baseline after", self._probe_after),
            ("server stop", self._stop_server),
            *([("middlebox stop", self._stop_boxes)] if self._job.boxes else []),
            ("captures", self._stop_sides),
            ("collect", self._collect),
        ]

    def _is_open(self) -> bool:
        return self._at_client.side is not None

    def _beat(self) -> None:
        """Send the watchdogs signs of life of this runner."""
        number = 0
        while not self._over.wait(_BEAT_SECONDS):
            number += 1
            for end in self._ends:
                end.beat(number)

    def discard(self) -> None:
        """Remove everything of this job from both hosts. Raises LaneError when a host can't be reached."""
        self._over.set()
        try:
            together(self._pool, *(end.discard for end in self._ends))
        finally:
            self._pool.shutdown(wait=False)

    def _open(self) -> None:
        """Start the watchdogs, then captures and probes; make the endpoints; then probe the idle link for a while."""
        job, link = self._job, self._link
        life = job.timeout + LIFE_MARGIN
        quotas = {"/logs": job.limits.logs, "/box": job.limits.logs, "/downloads": downloads_quota(job.required_files)}
        token, probe = secrets.token_hex(16), str(link.probe_port)
        common = (str(round(life)), token, probe)
        with self._stages.stage("watchdogs"):
            for end in self._ends:
                end.find_images()
            together(self._pool, *(lambda member=member: member.guard(life) for member in self._ends))
            threading.Thread(target=self._beat, name="beat", daemon=True).start()
        with self._stages.stage("captures and probes"):
            interfaces, filter_text = self._interfaces(), self._at_client.capture_filter
            answering = (interfaces["server"], filter_text, str(link.udp_port))
            self._at_server.start_side(("server", *common, *answering), quotas=quotas)
            asking = (interfaces["client"], filter_text, self._to.address, f"{probe_period(link):.4f}")
            self._at_client.start_side(("client", *common, *asking), quotas=quotas)
            began = time.monotonic()
        with self._stages.stage("networks"):
            together(
                self._pool,
                *(lambda member=member: member.open_network(life=life, token=token) for member in self._ends),
            )
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
        """Wait up to LINK_PATIENCE_SECONDS for a link that is down. Raises LaneError `link` when it doesn't come up."""
        deadline = time.monotonic() + LINK_PATIENCE_SECONDS
        while True:
            self._copy_probes()
            if any(exchange.rtt is not None for exchange in self._exchanges[-_RECENT_PROBES:]):
                return
            if time.monotonic() > deadline:
                sent = len(self._exchanges)
                raise LaneError(LINK_DOWN, f"{self._link.name}: none of {sent} probes was answered before the transfer")
            self._bell.wait(lambda: False, timeout=BASELINE_SECONDS)

    def _create(self, end: LinkEnd, quotas: Mapping[str, int]) -> None:
        certificates = {f"/certs/{name}": content for name, content in self._certificates.files().items()}
        server = end.role is Role.SERVER
        end.create_endpoint(
            files=certificates,
            hosts=self._hosts,
            volumes=(self._served.www(self._job.files),) if server else (),
            udp_port=self._link.udp_port,
            quota=sum(quotas.values()),
        )
        posing = certificates if self._job.topology.poses_as_server else {}
        end.create_box({**self._box_keys, **posing}, quota=quotas["/box"])

    def _box_ready(self, box: Box) -> bool:
        return self._end_of(self._boxes[box]).box_ready()

    def _answers_quic(self) -> bool:
        return self._at_server.wait_until_ready(timeout=SERVER_READY_SECONDS)

    def _listens(self, port: int) -> bool:
        return self._at_server.listens(port)

    def _last_lines(self, endpoint: Endpoint) -> str:
        return "\n".join(self._end_of(endpoint).output(endpoint).splitlines()[-_LINES:])

    def _end_of(self, endpoint: Endpoint) -> LinkEnd:
        return next(end for end in self._ends if endpoint in end.endpoints)

    def _run_client(self) -> None:
        client, server, side = self._client.watched, self._server.watched, self._at_client.side
        assert side is not None, "_open() comes first"
        with self._stages.stage(CLIENT_START):
            self._client.start()
        with self._stages.stage("transfer"):

            def broken() -> bool:
                return server.ended or side.ended or any(box.watched.ended for box in self._boxes.values())

            self._bell.wait(lambda: client.ended or broken(), timeout=self._job.timeout)
            if server.ended and not client.ended:
                self._bell.wait(lambda: client.ended, timeout=_CLIENT_AFTER_SERVER)
            if not client.ended:
                self._client.stopped_by_us |= broken()
                self._client.timed_out = not self._client.stopped_by_us
                client.kill()
            for end in self._ends:
                end.require_side()
            self._require_boxes()

    def _require_boxes(self) -> None:
        """Raises LaneError when a box ended before the client."""
        for box, endpoint in self._boxes.items():
            if endpoint.watched.ended and self._client.stopped_by_us:
                printed = self._last_lines(endpoint)
                raise LaneError(f"{box.value}-ended", f"The {box.value} ended early.", printed=printed)

    def _probe_after(self) -> None:
        self._bell.wait(lambda: False, timeout=BASELINE_SECONDS + 1.5 * (self._to.rtt or 0.0))

    def _stop_sides(self) -> None:
        printed = [end.stop_side() for end in self._ends]
        dropped = [_DROPPED.findall(text) for text in printed]
        for end, text, counts in zip(self._ends, printed, dropped, strict=True):
            if len(counts) < end.captures:
                raise LaneError("captures-died", "A capture ended before its time.", printed=text[-2000:])
        self._capture_drops = sum(int(count) for counts in dropped for count in counts)

    def _collect(self) -> None:
        """Copy captures, probes and the endpoints' files; compare the downloads."""
        together(
            self._pool,
            lambda: self._copy_capture(self._at_client, "left.pcap"),
            lambda: self._copy_capture(self._at_server, "right.pcap"),
            self._copy_probes,
            *(lambda endpoint=endpoint: self._copy_printed(endpoint) for endpoint in self._endpoints),
            *(lambda end=end: self._copy_endpoint_captures(end) for end in self._ends),
            self._compare_downloads,
        )

    def _copy_capture(self, end: LinkEnd, name: str) -> None:
        blocks = end.archive("/side/capture.pcap", limit=CAPTURE_LIMIT)
        path = self._job.folder / "sim" / name
        collect.extract_file(blocks, path, budget=CAPTURE_LIMIT)
        where = end.role.value
        require_datagrams(path, where=where, interface=self._interfaces()[where])

    def _copy_endpoint_captures(self, end: LinkEnd) -> None:
        role = end.role.value
        path = self._job.folder / role / f"{role}.pcap"
        for blocks in end.endpoint_captures(limit=CAPTURE_LIMIT):
            collect.extract_file(blocks, path, budget=CAPTURE_LIMIT)

    def _way(self) -> Way:
        """The way of the traffic over the link."""
        box = self._job.topology.middlebox
        return Way(
            gateway=self._to.address,
            terminal=self._to.client,
            port=self._link.udp_port,
            server_port=self._job.server_port or CONTRACT_PORT,
            forwards=box is None or box.forwards,
        )

    def _interfaces(self) -> dict[str, str]:
        return {"client": self._to.interface, "server": self._link.server_interface or self._to.server_interface}

    def _copy_probes(self) -> None:
        path = self._job.folder / "sim" / "probes.txt"
        blocks = self._at_client.archive("/side/probes.txt", limit=_PROBES)
        collect.extract_file(blocks, path, budget=_PROBES)
        self._exchanges = settled(parse(path.read_text(errors="replace")))

    def _copy_printed(self, endpoint: Endpoint) -> None:
        self._printed[endpoint.role.value] = self._end_of(endpoint).output(endpoint)
        self._copy_logs(endpoint)

    def _archive(self, endpoint: Endpoint, path: str) -> Iterator[bytes]:
        end = self._end_of(endpoint)
        limit = downloads_quota(self._job.required_files) if path == "/downloads" else self._job.limits.logs
        return end.archive(end.path_of(endpoint, path), limit=limit)

    def _outputs(self) -> dict[str, str]:
        return dict(sorted(self._printed.items()))

    def _evidence(self) -> Evidence:
        client = self._client.running
        observed = judge(self._exchanges, client.final if client is not None else None)
        if observed.problem and (not self._error or self._error["code"] in (LINK_DOWN, "host-lost", "side-failed")):
            self._error = {"code": LINK_DOWN, "message": f"{self._link.name}: {observed.problem}"}
        self._client.clock_ahead = observed.clock.offset if observed.clock is not None else 0.0
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
                translated=self._to.client != self._to.local if self._to.client and self._to.local else None,
                clock=observed.clock,
                before=observed.before,
                during=observed.during,
                after=observed.after,
                probe_data_rate=8 * (PROBE_BYTES + (20 if self._to.family == 6 else 0)) / probe_period(self._link),
                comment=self._link.comment,
            ),
        )


def end_kind(job: LaneJob) -> type[LinkEnd]:
    """The class of a job's ends. The endpoints need their own networks for a middlebox, and for TCP, because a
    host's network card would join TCP segments before they are captured."""
    return RoutedEnd if job.topology.middlebox is not None or job.server_port is not None else LinkEnd
