"""What one job has on one host of a real link: endpoint, side container, volumes, and the watchdog over them."""

import contextlib
import errno
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.engine.containers import WATCHDOG_ROLE, ContainerSpec, Engine, Volume
from runner.errors import LaneError
from runner.lanes.endpoint import CAPABILITIES, Endpoint
from runner.lanes.holders import CAPTURE_LIMIT, TOOLS, bounded
from runner.lanes.supervised import Bell, Watched
from runner.model.implementation import Role
from runner.model.real_link import RemoteHost
from runner.units import MIB

CONTRACT_PORT = 443  # UDP, where every server listens
SCRIPTS = Path(__file__).parent / "scripts"
_SIDE, _WATCHDOG = "/side/side.py", "/watchdog.py"
_PYTHON = ("/usr/bin/python3", "-ISB")
LEASE_SECONDS = 90  # without a sign of the runner; it may lose a host for a minute and come back
_READY_SECONDS = 20.0
_LOOK_SECONDS = 0.25
_ENDED = "side ended"  # by SIGTERM, in good order
# Stock images take the first two addresses of the host for a lane's, and would change the host's routes.
SETUP_SCRIPT = b"#!/bin/sh\n# A real link: the host has its routes already.\nmkdir -p /logs/qlog\n"
_WATCHDOG_MEMORY, _SIDE_MEMORY = 128 * MIB, 1024 * MIB  # bytes
_LOG = {"Type": "json-file", "Config": {"max-size": "8m", "max-file": "2"}}
_QUIET = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}}


class Station:
    """One job's part on one host. Made by `prepare`, removed by `discard`, by its watchdog, or by the next sweep."""

    def __init__(self, engine: Engine, host: RemoteHost | None, bell: Bell, *, endpoint: Endpoint, name: str) -> None:
        self.engine = engine
        self.endpoint = endpoint
        self.role = endpoint.role
        self.name = f"{name}-{self.role.value}"
        self.side: Watched | None = None
        self._host = host.name if host is not None else "this host"
        self._docker_socket = host.docker_socket if host is not None else "/var/run/docker.sock"
        self._bell = bell
        self._containers: list[str] = []

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """/logs, and /downloads of a client; they last as long as the side container."""
        names = ("logs", "downloads") if self.role is Role.CLIENT else ("logs",)
        return tuple(Volume(name=f"{self.name}-{name}", path=f"/{name}") for name in names)

    def beat(self, number: int) -> None:
        """Tell the watchdog that the runner lives; what can't be told now is told later."""
        with contextlib.suppress(LaneError):
            Engine.put(self.engine, self._watchdog, "/", {"beat": str(number).encode()})

    @property
    def _watchdog(self) -> str:
        return f"{self.name}-watchdog"

    def _names(self) -> list[str]:
        return [f"{self.name}-{part}" for part in ("endpoint", "side")] + [
            f"volume:{volume.name}" for volume in self.volumes
        ]

    def guard(self, life: float) -> None:
        """Start the watchdog: after `life` seconds, or when `beat` stays away, it removes this station, and itself."""
        own = self._watchdog
        spec = ContainerSpec(
            image=TOOLS,
            role=WATCHDOG_ROLE,
            command=(*_PYTHON, _WATCHDOG, str(round(life)), str(LEASE_SECONDS), own, *self._names()),
            host={
                "network_mode": "none",
                "binds": [f"{self._docker_socket}:/docker.sock"],
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges"],
                "pids_limit": 16,
                **bounded(_WATCHDOG_MEMORY),
                "restart_policy": {"Name": "unless-stopped"},  # it outlives a restart of the engine, which ends the job
                "log_config": _QUIET,
            },
        )
        self._make(own, spec, {_WATCHDOG: (SCRIPTS / "watchdog.py").read_bytes()})
        self.engine.start(own)

    def _make(self, name: str, spec: ContainerSpec, files: Mapping[str, bytes], *, mode: int = 0o555) -> str:
        container = self.engine.create(name, spec)
        self._containers.append(container)
        self.engine.put(container, "/", {path.lstrip("/"): content for path, content in files.items()}, mode=mode)
        return container

    def start_side(self, arguments: tuple[str, ...], *, quotas: Mapping[str, int]) -> None:
        """Start capture and probe with the words of scripts/side.py; return when both work. Quotas in bytes."""
        for volume in self.volumes:
            self.engine.create_volume(volume.name, role=self.role.value, quota=quotas[volume.path])
        spec = ContainerSpec(
            image=TOOLS,
            role=f"{self.role.value}-side",
            command=(*_PYTHON, _SIDE, *arguments),
            volumes=self.volumes,
            host={
                "network_mode": "host",
                "cap_drop": ["ALL"],
                "cap_add": ["NET_RAW", "SETUID", "SETGID", "NET_BIND_SERVICE"],
                "security_opt": ["no-new-privileges"],
                "pids_limit": 64,
                **bounded(_SIDE_MEMORY),
                "ulimits": [{"Name": "fsize", "Soft": CAPTURE_LIMIT, "Hard": CAPTURE_LIMIT}],
                "log_config": _QUIET,
            },
        )
        container = self._make(f"{self.name}-side", spec, {_SIDE: (SCRIPTS / "side.py").read_bytes()})
        self.side = Watched(self.engine, container, self._bell)
        self.side.start()
        self._await_side(("listening on", "side ready"))

    def _await_side(self, words: tuple[str, ...]) -> str:
        """Wait until the side container has printed all of `words`; what it has printed."""
        assert self.side is not None, "start_side() comes first"
        side, waited = self.side, 0.0
        while waited < _READY_SECONDS:
            printed = self.engine.printed(side.container)
            if all(word in printed for word in words):
                return printed
            if side.ended:
                break
            self._bell.wait(lambda: side.ended, timeout=_LOOK_SECONDS)
            waited += _LOOK_SECONDS
        said = self._last_words(side)
        raise LaneError(
            "side-failed", f"Capture and probe at the {self.role.value} failed.", printed=said or "no output"
        )

    def _last_words(self, side: Watched) -> str:
        """Why capture and probe ended, or the end of what they printed; empty when their host no longer knows."""
        try:
            if self.engine.state(side.container).exit_code == errno.ENOSPC:
                return f"the disk of {self._host} is full: make room on it, then resume the run."
            return " ".join(self.engine.printed(side.container).splitlines()[-4:])
        except LaneError:
            return ""

    def require_side(self) -> None:
        """Raises LaneError `side-died` when capture and probe run no more: then the host ended the endpoint, too."""
        if self.side is None or self.engine.state(self.side.container).exit_code is not None:
            said = self._last_words(self.side) if self.side is not None else ""
            if not said or _ENDED in said:  # killed, or asked to end: by somebody else
                said = "was Docker restarted?"
            raise LaneError(
                "side-died", f"Capture and probe at the {self.role.value} ended before the job.", printed=said
            )

    def stop_side(self) -> str:
        """End capture and probe; their volumes stay. Returns what they printed."""
        assert self.side is not None, "start_side() comes first"
        self.engine.signal(self.side.container, "SIGTERM")
        return self._await_side((_ENDED,))

    def create_endpoint(
        self,
        *,
        files: Mapping[str, bytes],
        hosts: tuple[str, ...],
        volumes: tuple[Volume, ...] = (),
        udp_port: int = CONTRACT_PORT,
        quota: int,
    ) -> None:
        """Make the endpoint's container, not started. `hosts`: names that it resolves, `name:address`. `quota`: bytes
        that it may write to its volumes, which count as its memory.

        A server at another port than the contract's stands behind the engine's own network, which publishes the port.
        """
        # In the host's namespace it has no rights over the network: that is the host's own.
        host: dict[str, Any] = {
            "network_mode": "host",
            "extra_hosts": [*hosts, "sim:127.0.0.1"],
            "cap_add": list(CAPABILITIES),
            "log_config": _LOG,
        }
        ports: tuple[tuple[int, str], ...] = ()
        if self.role is Role.SERVER and udp_port != CONTRACT_PORT:
            host |= {"network_mode": "bridge", "port_bindings": {f"{CONTRACT_PORT}/udp": udp_port}}
            ports = ((CONTRACT_PORT, "udp"),)
        spec = self.endpoint.container((*self.volumes, *volumes), quota=quota, host=host)
        container = self._make(
            f"{self.name}-endpoint", replace(spec, ports=ports), {"/setup.sh": SETUP_SCRIPT, **files}
        )
        self.endpoint.running = Watched(self.engine, container, self._bell)

    def wait_until_ready(self, port: int, address: str, *, timeout: float) -> bool:
        """Whether the server answers at its own address within `timeout` seconds."""
        assert self.side is not None, "start_side() comes first"
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            command = [*_PYTHON, _SIDE, "ready", str(max(1, round(left))), "00", str(port), address]
            # Not by what it prints: the engine may lose the output of a command that ends at once.
            if self.engine.execute(self.side.container, command)[0] == 0:
                return True
        return False

    def archive(self, path: str, *, limit: int) -> Iterator[bytes]:
        """A folder of the volumes, or a file of the side container, as tar: `limit` bytes of it at most."""
        if self.side is None:
            raise LaneError("no-side", f"There is no side container at the {self.role.value}.")
        return self.engine.archive(self.side.container, path, limit=limit)

    def output(self) -> str:
        """What the endpoint has printed, as far as its log reaches back."""
        running = self.endpoint.running
        return self.engine.printed(running.container) if running is not None else ""

    def discard(self) -> None:
        """Remove everything, the watchdog last. Raises LaneError when the engine refuses."""
        for container in reversed(self._containers[1:]):
            self.engine.remove(container)
        for volume in self.volumes:
            self.engine.remove_volume(volume.name)
        for container in self._containers[:1]:
            self.engine.remove(container)
