"""A remote host behind a satellite link that is described in links.json. Tests and benchmarks run whole commands over
it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker

from lab.testbed.hosts import Host, free_number, lacking
from runner.engine.containers import LABEL_RUN
from runner.errors import SetupError
from runner.model.link import LinkParameters
from runner.places.links.link_experiment import CONTRACT_PORT
from runner.tests.links.satellite import INTERFACE, Satellite

LINK = "lab"


def write_links(
    path: Path,
    host: Host,
    *,
    interface: str,
    forward_rate: int,
    return_rate: int,
    udp_port: int = CONTRACT_PORT,
    budget_per_day: int | None = None,
) -> Path:
    """Write a links.json with one link, to `host`. When `udp_port` is not the contract's port, the probe uses the port
    after it."""
    remote = host.remote()
    entry = {
        "ssh": f"ssh://{remote.user}@{remote.address}",
        "host_key": remote.host_key,
        "key": str(remote.key),
        "docker_socket": remote.docker_socket,
    }
    link: dict[str, object] = {"client": "roof", "interface": interface}
    link |= {"forward_rate": forward_rate, "return_rate": return_rate, "budget_per_day": budget_per_day}
    if udp_port != CONTRACT_PORT:
        link |= {"udp_port": udp_port, "probe_port": udp_port + 1}
    path.write_text(json.dumps({"schema": 1, "hosts": {"roof": entry}, "links": {LINK: link}}))
    return path


@dataclass(frozen=True, kw_only=True)
class Sky:
    """The host, its link, and the run of the commands."""

    host: Host
    satellite: Satellite
    links: Path
    run: Path

    def command(self, *more: str) -> list[str]:
        """`./bentpipe run` over the link."""
        return [sys.executable, "-m", "runner", "run", "--links", str(self.links), "--run", str(self.run), *more]

    def things(self) -> set[str]:
        """The run's containers and volumes (as volume:NAME) on both hosts. Raises when a host doesn't answer."""
        names_seen: set[str] = set()
        for engine in (self.host.engine(), docker.from_env()):
            try:
                mine = {"label": f"{LABEL_RUN}={self.run.name}"}
                names_seen |= {entry["Names"][0].lstrip("/") for entry in engine.api.containers(all=True, filters=mine)}
                names_seen |= {f"volume:{entry['Name']}" for entry in engine.api.volumes(filters=mine)["Volumes"] or ()}
            finally:
                engine.close()
        return names_seen


@contextmanager
def sky_over(
    folder: Path,
    forward: LinkParameters,
    return_: LinkParameters,
    *,
    disk: int = 0,
    udp_port: int = CONTRACT_PORT,
) -> Iterator[Sky]:
    """A remote host and its link while the context lasts. Raises SetupError when this machine can't make them."""
    if reason := lacking():
        raise SetupError(f"No remote host can be made: {reason}.")
    host = Host(folder, free_number(), disk=disk)
    satellite = Satellite(host, None, host.number)
    try:
        host.open()
        satellite.open(forward, return_)
        links = write_links(
            folder / "links.json",
            host,
            interface=INTERFACE,
            forward_rate=forward.data_rate,
            return_rate=return_.data_rate,
            udp_port=udp_port,
        )
        yield Sky(host=host, satellite=satellite, links=links, run=folder / f"run-{host.name}")
    finally:
        satellite.close()
        host.close()
