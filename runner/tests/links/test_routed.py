"""Networks behind routers, both on this host's engine: what crosses, what does not, what the captures show."""

import ipaddress
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from runner.decode.capture import TCP, read_packets
from runner.engine.containers import LABEL_LANES, LABEL_OWNER, LABEL_RUN, Engine
from runner.engine.engine import Owner, remove_own
from runner.errors import LaneError
from runner.inputs.inputs import path_keys
from runner.model.stack import Box, Role
from runner.places.experiment import Endpoint
from runner.places.lane_job import BOX_ENVIRONMENT, CLIENT4, RIGHT4, SERVER4, EndpointLimits, EndpointSpec
from runner.places.links.link_experiment import Collected, LinkEnd, Way
from runner.places.supervised import TOOLS, Notifier
from runner.store import collect
from runner.units import MIB

pytestmark = pytest.mark.docker

LIFE, SIZE, TUN = 120.0, 200_000, "/dev/net/tun:/dev/net/tun:rwm"
_SERVE = f"import socket; s = socket.create_server(('{SERVER4}', 443)); c = s.accept()[0]; print(c.getpeername()[0], flush=True); c.sendall(bytes({SIZE})); c.close()"  # fmt: skip # noqa: E501
_ASK = "import socket; s = socket.create_connection(('server4', 443), 10); n = 0\nwhile d := s.recv(65536): n += len(d)\nprint(n)"  # fmt: skip # noqa: E501


class Two:
    """A client's and a server's end on one engine; the client's finds the server's at the bridge's address."""

    def __init__(self, *, forwards: bool, box: str | None = None) -> None:
        self.name = f"bentpipe-{secrets.token_hex(4)}"
        labels = {LABEL_OWNER: str(Owner.current()), LABEL_RUN: "routed", LABEL_LANES: self.name}
        client = docker.from_env()
        self.engine = Engine(client, labels)
        subnet = client.networks.get("bridge").attrs["IPAM"]["Config"][0]["Subnet"]
        bridge = str(next(ipaddress.ip_network(subnet).hosts()))
        way = Way(gateway=bridge, terminal="192.0.2.1", port=24443, server_port=443, forwards=forwards)
        self.server = self._end(Role.SERVER, Box.GATEWAY, box, way)
        self.client = self._end(Role.CLIENT, Box.TERMINAL, box, way)
        self.ends = (self.server, self.client)

    def _end(self, role: Role, place: Box, box: str | None, way: Way) -> LinkEnd:
        spec = EndpointSpec(image=TOOLS, entrypoint=("sleep", "100"))
        boxed = None
        if box is not None:
            environment = {**BOX_ENVIRONMENT, "QLOGDIR": "/logs/qlog/"}
            requested = EndpointSpec(image=box, entrypoint=("/run_box.sh",), environment=environment, devices=(TUN,))
            boxed = Endpoint(place, requested, EndpointLimits())
        return LinkEnd(
            engine=self.engine,
            host=None,
            notifier=Notifier(threading.Event()),
            endpoint=Endpoint(role, spec, EndpointLimits()),
            name=f"{self.name}-{role.value}",
            collected=Collected().job(),
            box=boxed,
            way=way,
            routed=True,
            receives=role is Role.CLIENT,
        )

    def open(self) -> "Two":
        """Both networks; with boxes, these too, until they say that they carry traffic."""
        keys = {f"/keys/{name}": content for name, content in path_keys().items()}
        common, last = ("120", "00" * 16, "24445", "lo", "udp port 9"), {"server": ("24446",), "client": ("::1", "1")}
        for end in self.ends:
            end.find_images()
            end.guard(LIFE)
            role = end.role.value
            quotas = {"/logs": MIB, "/downloads": MIB, "/box": 16 * MIB}
            end.start_monitor((role, *common, *last[role]), quotas=quotas)
            end.open_network(life=LIFE, token="00" * 16)
            end.create_endpoint(files={}, hosts=(), quota=MIB)
            end.create_box(keys, quota=16 * MIB)
            for endpoint in end.endpoints:
                endpoint.start()
        for end in self.ends:
            deadline = time.monotonic() + 30
            while not end.box_ready():
                assert time.monotonic() < deadline, end.output(end.endpoints[-1])
        return self

    def execute(self, end: LinkEnd, script: str) -> tuple[int, str]:
        """Run Python in the endpoint, which alone knows the names of the hosts."""
        assert end.endpoint.running is not None
        return self.engine.execute(end.endpoint.running.container, ["python3", "-c", script])

    def transfer(self) -> tuple[tuple[int, str], tuple[int, str]]:
        """Serve bytes over TCP and fetch them. Returns what server and client printed, each with its exit code."""
        with ThreadPoolExecutor(1) as pool:
            serving = pool.submit(self.execute, self.server, _SERVE)
            while not self.server.listens(443):
                time.sleep(0.1)
            requested = self.execute(self.client, _ASK)
            return serving.result(), requested

    def close(self) -> None:
        remove_own(self.engine, {LABEL_LANES: self.name})
        self.engine.close()


@pytest.fixture(autouse=True, scope="module")
def images() -> None:
    try:
        docker.from_env().images.get(TOOLS)
    except (DockerException, ImageNotFound) as error:
        pytest.skip(f"no engine with the tools: {error}")


@contextmanager
def opened(*, forwards: bool, box: str | None = None) -> Iterator[Two]:
    two = Two(forwards=forwards, box=box)
    try:
        yield two.open()
    finally:
        two.close()


def test_tcp_crosses_translated_and_the_captures_show_what_each_end_said(tmp_path: Path) -> None:
    with opened(forwards=True) as two:
        served, requested = two.transfer()
        assert requested == (0, f"{SIZE}\n")
        # The server sees an address of the way, and not the one that the client has in its own network.
        assert served[0] == 0 and not served[1].startswith("193.167.")
        assert two.execute(two.client, "import socket; socket.create_connection(('sim', 57832), 5)")[0] == 0
        for end in two.ends:
            end.stop_monitor()
            path = tmp_path / f"{end.role.value}.pcap"
            [capture] = end.endpoint_captures(limit=16 * MIB)
            collect.extract_file(capture, path, budget=16 * MIB)
            packets = [packet for packet in read_packets(path)[1] if packet.protocol == TCP]
            assert sum(packet.payload for packet in packets) >= SIZE
            assert max(packet.length for packet in packets) <= 1500, "the captures show what the link carries"


@pytest.mark.parametrize(
    ("box", "client"),
    [
        # Without --all, `./bentpipe test` builds no VPN.
        pytest.param("bentpipe/middlebox-openvpn", CLIENT4, marks=pytest.mark.slow),
        pytest.param("bentpipe/middlebox-wireguard", CLIENT4, marks=pytest.mark.slow),
        ("bentpipe/qpep", RIGHT4),
    ],
)
def test_boxes_find_each_other_through_address_translations(box: str, client: str) -> None:
    try:
        docker.from_env().images.get(box)
    except ImageNotFound:
        pytest.skip(f"{box} is not built")
    with opened(forwards=False, box=box) as two:
        assert two.transfer() == ((0, f"{client}\n"), (0, f"{SIZE}\n"))


def test_nothing_crosses_where_the_boxes_do_not_carry_it() -> None:
    with opened(forwards=False) as two:
        code, text = two.execute(two.client, _ASK)
        assert code != 0 and "Error" in text


def test_a_network_that_cannot_be_wired_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.places.links.link_experiment._OFFLOADS", "nonsense on")
    with pytest.raises(LaneError, match="The networks at the server could not be wired"), opened(forwards=True):
        pass
