"""A real link: the hosts at its ends, its tariff, and the observations during a job. SI units."""

from dataclasses import dataclass
from pathlib import Path

from runner.model.implementation import Role

LINK_DOWN = "link"  # error code of a job whose link did not carry it; no stack is at fault


@dataclass(frozen=True, kw_only=True)
class RemoteHost:
    """A host with a Docker Engine that is reached over SSH. `host_key`: in the format of OpenSSH, `type base64`."""

    name: str
    user: str
    address: str
    port: int
    host_key: str
    key: Path | None  # the private key; None: the SSH agent has the key
    docker_socket: str = "/var/run/docker.sock"
    roles: tuple[Role, ...] = (Role.CLIENT, Role.SERVER)


@dataclass(frozen=True, kw_only=True)
class RealLink:
    """One entry of links.json. Data rates are in bit/s, as advertised; volumes are in bytes. When `server` is None, the
    server runs on this host."""

    name: str
    client: RemoteHost
    server: RemoteHost | None
    forward_rate: int
    return_rate: int
    interface: str = ""  # interface of the client's host; empty: the interface that leads to the server
    server_interface: str = ""
    server_addresses: tuple[str, ...] = ()  # candidates; empty: every address of the server's host
    families: tuple[int, ...] = (4, 6)
    udp_port: int = 443
    probe_port: int = 57833
    provider: str = ""
    tariff: str = ""
    budget_day: int | None = None
    budget_month: int | None = None
    quiet_hours: tuple[str, ...] = ()  # `18:00-23:00`, local time of this host
    ssh_over_link: bool = False  # True: SSH to the client's host crosses the link, so the bytes of SSH count, too
    abbreviation: str = ""
    timeout: float = 120.0  # time-out of a measurement, in seconds
    iterations: int = 5
    comment: str = ""  # weather, dish, works on the roof: copied into every job

    @property
    def hosts(self) -> tuple[RemoteHost, ...]:
        """The remote hosts, the client's first."""
        return (self.client,) if self.server is None else (self.client, self.server)


@dataclass(frozen=True, kw_only=True)
class RealLinkRecord:
    """The record of a real link in `run.json`. It identifies the link and has no secrets."""

    name: str
    client: str  # name of the client's host
    server: str  # name of the server's host; empty: the runner's host
    provider: str
    tariff: str
    udp_port: int
    families: tuple[int, ...]

    @classmethod
    def of(cls, link: RealLink) -> "RealLinkRecord":
        return cls(
            name=link.name,
            client=link.client.name,
            server=link.server.name if link.server else "",
            provider=link.provider,
            tariff=link.tariff,
            udp_port=link.udp_port,
            families=link.families,
        )


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The difference of the two hosts' clocks: client's clock − server's clock = `offset` + `drift` · (t − `at`).

    It is estimated from the exchanges with the smallest RTTs, as NTP does (RFC 5905 §10). `uncertainty` assumes that
    both directions of an idle link have the same delay. Without this assumption, the error is at most `bound`, which is
    half of the smallest RTT.
    """

    offset: float
    drift: float  # seconds per second; 0 when the time between the exchanges is too short to measure it
    at: float  # seconds since 1970, server's clock
    uncertainty: float
    bound: float
    exchanges: int  # number of exchanges behind the estimate

    def server_time(self, time: float) -> float:
        """The time on the server's clock when the client's clock shows `time`."""
        return self.at + (time - self.at - self.offset) / (1 + self.drift)

    def ahead(self, time: float) -> float:
        """The seconds by which the client's clock is ahead when the server's clock shows `time`."""
        return self.offset + self.drift * (time - self.at)


@dataclass(frozen=True, kw_only=True)
class Probing:
    """The results of the probes in one phase of a job. Times are in seconds; None: no probe was answered."""

    sent: int
    received: int
    rtt_min: float | None = None
    rtt_median: float | None = None
    rtt_max: float | None = None
    longest_gap: float = 0.0  # longest time without an answered probe in the phase

    @property
    def loss(self) -> float:
        """Fraction of the probes that were not answered."""
        return 1 - self.received / self.sent if self.sent else 0.0


@dataclass(frozen=True, kw_only=True)
class RealLinkEvidence:
    """The observations of a real link during a job."""

    name: str
    server_address: str
    family: int
    interface: str  # interface of the client's host
    udp_port: int
    translated: bool | None = None  # True: the client is behind a NAT; None: unknown
    clock: Clock | None = None
    before: Probing | None = None
    during: Probing | None = None
    after: Probing | None = None
    probe_data_rate: float = 0.0  # bit/s of the probes' IP packets in each direction; no number includes them
    volume: int = 0  # bytes of IP packets in both directions that are charged to this job
    comment: str = ""
