"""A station whose endpoint has its own network, as in lanes, behind a router that may hold a box.

    client ── lan0 router sat0 ── bridge of Docker, host ══ link ══ host, bridge of Docker ── sat0 router wan0 ── server

Endpoints have the addresses of lanes. The host's routes and interfaces stay unchanged: the router is an ordinary
container on Docker's bridge, which translates its address and publishes the gateway's port.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.engine.containers import Engine, Volume
from runner.errors import LaneError
from runner.lanes.addresses import CLIENT_HOSTS, LANE6, RIGHT4, RIGHT6, SERVER4, SERVER_HOSTS, hosts_file
from runner.lanes.endpoint import Endpoint
from runner.lanes.holders import NAMESPACE_SETTINGS, ROUTER_SETTINGS, plumber
from runner.lanes.lane import look_for
from runner.lanes.network import CLIENT_NETWORK4, SERVER_NETWORK4, cables, routes
from runner.lanes.supervised import Bell, Watched
from runner.lanes.wiring import routes_via, wiring_script
from runner.model.implementation import Role
from runner.model.middlebox import Box
from runner.model.real_link import RemoteHost
from runner.model.topology import CLIENT, GATEWAY, SERVER, TERMINAL, Hop
from runner.remote.collected import CollectedOfJob
from runner.remote.station import CONTRACT_PORT, LOG, QUIET, SIDE_RIGHTS, Station, Way

_CUBIC = "cubic"  # the same on all hosts: their defaults may differ
_WIRINGS = 5000  # numbers of the cable's interfaces, above those that Docker uses
_BOX_LOGS = "/box"  # path of the box's /logs in the side container
_OFFLOADS = "tx off tso off gso off gro off"
_WIRED_SECONDS = 60.0  # longest time for the wiring, which takes a second on an idle host


class RoutedStation(Station):
    """Call `open_network` after `start_side`."""

    captures = 2
    families = (4,)

    def __init__(
        self,
        engine: Engine,
        host: RemoteHost | None,
        bell: Bell,
        *,
        endpoint: Endpoint,
        name: str,
        collected: CollectedOfJob,
        way: Way,
        box: Endpoint | None = None,
    ) -> None:
        super().__init__(engine, host, bell, endpoint=endpoint, name=name, collected=collected, way=way, box=box)
        self._place = Box.TERMINAL if endpoint.role is Role.CLIENT else Box.GATEWAY
        self._inner: Watched | None = None
        self._router: Watched | None = None

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """The endpoint's volumes; with a box, also /logs of the box."""
        return (*super().volumes, *(Volume(name=f"{self.name}-box-logs", path=_BOX_LOGS) for _ in self._boxes))

    @staticmethod
    def host_name(host: str) -> str:  # noqa: ARG004 - the endpoints' own network has the names of lanes
        return "server4"

    @staticmethod
    def url_port(port: int) -> int:  # noqa: ARG004 - the router translates the port
        return CONTRACT_PORT

    @property
    def capture_filter(self) -> str:
        return f"port {self._way.port}"  # a middlebox may send TCP over the link

    def _parts(self) -> tuple[str, ...]:
        return ("box", *super()._parts(), "plumber", "router", "inner")

    def open_network(self, *, life: float, token: str) -> None:
        """Make and connect the networks of endpoint and router, and start the capture at the endpoint. Raises
        LaneError."""
        arguments = (str(round(life)), token)
        self._inner = self._tools(
            "inner",
            ("inner", *arguments),
            host={
                **SIDE_RIGHTS,
                "network_mode": "none",
                "sysctls": NAMESPACE_SETTINGS,
            },
        )
        published = {f"{self._way.port}/{protocol}": self._way.port for protocol in ("tcp", "udp")}
        at_gateway = self._place is Box.GATEWAY
        self._router = self._tools(
            "router",
            ("router", *arguments),
            host={
                **SIDE_RIGHTS,
                "network_mode": "bridge",
                "sysctls": ROUTER_SETTINGS,
                "port_bindings": published if at_gateway else {},
            },
            ports=((self._way.port, "tcp"), (self._way.port, "udp")) if at_gateway else (),
        )
        address = self._wire()
        ends = (address, self._way.gateway) if self._place is Box.TERMINAL else (self._way.terminal, address)
        for box in self._boxes:
            box.environment |= dict(zip(("TERMINAL_ADDRESS", "GATEWAY_ADDRESS"), ends, strict=True))
            box.environment["LINK_PORT"] = str(self._way.port)
        self._await(self._inner, ("listening on", "side ready"), "The capture")

    def _wire(self) -> str:
        """Connect the endpoint's network to the router. Returns the router's address on Docker's bridge."""
        pids = [self.engine.state(holder.container).pid for holder in (self._inner, self._router) if holder is not None]
        script = wiring(self._place, pids[0], pids[1], self._way)
        rights = plumber()
        host = {**rights.host, "network_mode": "host", "log_config": QUIET}
        spec = replace(rights, command=("sh", "-c", script), stdin=False, host=host)
        running = Watched(self.engine, self._make(f"{self.name}-plumber", spec, {}), self._bell)
        running.start()
        self._bell.wait(lambda: running.ended, timeout=_WIRED_SECONDS)
        printed = self.engine.printed(running.container).strip()
        if running.final is None or running.final.exit_code != 0:
            raise LaneError("not-wired", f"The networks at the {self.role.value} could not be wired.", printed=printed)
        return printed.splitlines()[-1]

    def create_endpoint(
        self,
        *,
        files: Mapping[str, bytes],
        hosts: tuple[str, ...],  # noqa: ARG002 - its network has the names of lanes
        volumes: tuple[Volume, ...] = (),
        udp_port: int = 0,  # noqa: ARG002 - the router publishes the port
        quota: int,
    ) -> None:
        """Create the endpoint's container in its own network, without starting it. `quota`: bytes of its volumes."""
        assert self._inner is not None, "open_network() comes first"
        host = {"network_mode": f"container:{self._inner.container}", "log_config": LOG}
        spec = self.endpoint.container((*super().volumes, *volumes), quota=quota, host=host)
        named = hosts_file(CLIENT_HOSTS if self.role is Role.CLIENT else SERVER_HOSTS).encode()
        container = self._make(f"{self.name}-endpoint", spec, {"/etc/hosts": named, **files})
        self.endpoint.join(self.engine, Watched(self.engine, container, self._bell))

    def create_box(self, files: Mapping[str, bytes], *, quota: int) -> None:
        assert self._router is not None, "open_network() comes first"
        host = {"network_mode": f"container:{self._router.container}", "log_config": LOG}
        logs = replace(self.volumes[-1], path="/logs")
        for box in self._boxes:
            container = self._make(f"{self.name}-box", box.container((logs,), quota=quota, host=host), files)
            box.join(self.engine, Watched(self.engine, container, self._bell))

    def box_ready(self) -> bool:
        assert self.side is not None, "start_side() comes first"
        look = look_for(f"{_BOX_LOGS}/ready")
        return all(self.engine.execute(self.side.container, look)[0] == 0 for _ in self._boxes)

    def path_of(self, endpoint: Endpoint, path: str) -> str:
        return _BOX_LOGS if endpoint in self._boxes else path

    def endpoint_captures(self, *, limit: int) -> Iterator[Iterator[bytes]]:
        """The capture in the endpoint's own network. Raises LaneError without a capture."""
        if self._inner is None:
            raise LaneError("no-side", f"There is no capture at the {self.role.value}.")
        archive = self.engine.archive(self._inner.container, "/side/capture.pcap", limit=limit)
        return iter((self._collected.counted(archive),))

    def stop_side(self) -> str:
        """End all captures and the probe. Returns their output."""
        printed = super().stop_side()
        if self._inner is None:
            return printed
        self.engine.signal(self._inner.container, "SIGTERM")
        return printed + self._await_end(self._inner)

    def _ready_from(self) -> Watched | None:
        return self._inner

    def _server_at(self) -> tuple[int, str]:
        return CONTRACT_PORT, SERVER4


def wiring(place: Box, inner: int, router: int, way: Way) -> str:
    """A shell script that connects an endpoint's network to its router; its last line is the router's address.

    It runs in the host's own network and sees the processes of the host. `inner` and `router` are processes in the two
    networks.
    """
    inside = f"nsenter --net=/proc/{router}/ns/net"
    hop: Hop = (CLIENT, TERMINAL) if place is Box.TERMINAL else (GATEWAY, SERVER)
    pids = {CLIENT: inner, TERMINAL: router} if place is Box.TERMINAL else {SERVER: inner, GATEWAY: router}
    # The client may have any address: without a box, the server sees the address of the client's host.
    far = {SERVER: routes_via(RIGHT4, RIGHT6, LANE6, "default", controller=_CUBIC)}
    by_role = {role: far.get(role, of_role) for role, of_role in routes([hop], {}).items()}
    return "\n".join(
        (
            "set -eu",
            f"gateway=$({inside} ip -4 route show default | cut -d' ' -f3)",
            f"address=$({inside} ip -4 -o address show eth0 | sed 's/.*inet \\([0-9.]*\\).*/\\1/')",
            f"peer=$({inside} ip -o link show eth0 | sed 's/.*@if\\([0-9]*\\):.*/\\1/')",
            'ours=$(ip -o link | sed -n "s/^$peer: \\([^@:]*\\).*/\\1/p")',
            # Offloads are off at both ends of Docker's cable, so that captures show the packets of the link.
            f"ethtool -K $ours {_OFFLOADS}",
            f"{inside} ip link set eth0 down",
            f"{inside} ip link set eth0 name sat0",
            f"{inside} ip link set sat0 up",
            f"{inside} ip route add default via $gateway dev sat0 congctl {_CUBIC}",
            f"{inside} ethtool -K sat0 {_OFFLOADS}",
            wiring_script(pids, cables([hop]), by_role, before=_WIRINGS),
            f"{inside} sh -euc '{_crossing(place, way)}'",
            "echo $address",
        )
    )


def _crossing(place: Box, way: Way) -> str:
    """Shell commands for the router. Without a box that takes the traffic, the router translates addresses and forwards
    the traffic; otherwise it drops traffic that would bypass the box."""
    if not way.forwards:  # no packet may bypass the box without encryption
        return f"ip route add blackhole {SERVER_NETWORK4 if place is Box.TERMINAL else CLIENT_NETWORK4}"
    ports = "meta l4proto { tcp, udp } th dport"
    if place is Box.TERMINAL:
        rules = _chain("there", "prerouting", f"iifname lan0 ip daddr {SERVER4} {ports} {way.server_port}"
                       f" dnat to {way.gateway}:{way.port}")  # fmt: skip
        rules += _chain("back", "postrouting", "oifname sat0 masquerade")
    else:
        rules = _chain("here", "prerouting", f"iifname sat0 {ports} {way.port} dnat to {SERVER4}:{way.server_port}")
    return f'echo "table ip crossing {{ {rules} }}" | nft -f -'


def _chain(name: str, hook: str, rule: str) -> str:
    priority = "dstnat" if hook == "prerouting" else "srcnat"
    return f"chain {name} {{ type nat hook {hook} priority {priority}; {rule}; }}; "
