"""The engine of a remote host: the same calls, of which each survives the loss of the SSH connection."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from tempfile import TemporaryFile
from typing import TypeVar

import docker
from docker.errors import APIError, DockerException
from requests.exceptions import RequestException

from runner.engine.client import BoundedDockerClient
from runner.engine.containers import ContainerSpec, Engine, State
from runner.errors import HostRefusedError, LaneError, SetupError
from runner.lanes.holders import CAPTURE_LIMIT
from runner.model.real_link import RemoteHost
from runner.remote.ssh import Connection, HostLostError
from runner.remote.tunnel import Tunnel
from runner.units import MIB

HOST_LOST = "host-lost"  # code of the LaneError of a host that stayed away
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_CALL_SECONDS = 60
_CONFLICT = 409
_BLOCK = 1 << 20
LARGEST_ARCHIVE = CAPTURE_LIMIT  # bytes that are kept of a folder or file of another host
_HEADERS = 8 * MIB  # bytes of the headers of an archive: of each file about 1.5 KiB

Value = TypeVar("Value")


class RemoteEngine(Engine):
    """Construct with `open`. Each call is made again until the host has been away for a minute."""

    def __init__(self, client: docker.DockerClient, labels: Mapping[str, str], tunnel: Tunnel) -> None:
        super().__init__(client, labels, url=tunnel.url)
        self.tunnel = tunnel

    @classmethod
    def open(cls, host: RemoteHost, labels: Mapping[str, str]) -> "RemoteEngine":
        """Connect to the engine of `host`. Raises SetupError with what is wrong, and the mend."""
        connection = Connection(host)
        connection.connect()
        tunnel = Tunnel(connection, patience=_PATIENCE_SECONDS)
        try:
            client = BoundedDockerClient(tunnel.url, version="auto", timeout=_CALL_SECONDS)
            return cls(client, labels, tunnel)
        except (DockerException, OSError) as error:
            failure = tunnel.failure
            tunnel.close()
            raise failure or SetupError(f"{host.name}: its Docker Engine doesn't answer ({error}).") from error

    @property
    def name(self) -> str:
        return self.tunnel.connection.host.name

    def require_welcome(self) -> None:
        """Raises HostRefusedError when the host lets us in no more. One that is away may come back: the calls wait."""
        with suppress(HostLostError):
            self.tunnel.connection.connect()

    def close(self) -> None:
        super().close()
        self.tunnel.close()

    def _patiently(self, call: Callable[[], Value]) -> Value:
        """Call until the host answers, whatever it answers. Raises LaneError: the engine's, or `host-lost`."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return call()
            except LaneError as error:
                if not _lost(error):
                    raise
                failure = self.tunnel.failure
                if time.monotonic() > deadline or isinstance(failure, HostRefusedError):
                    why = str(failure) if failure is not None else f"{self.name}: the connection broke off ({error})."
                    raise LaneError(HOST_LOST, why) from error
                time.sleep(_PAUSE_SECONDS if failure is not None else 0.0)

    def create(self, name: str, spec: ContainerSpec) -> str:
        """Make a container. When the answer to an earlier try was lost, the container is there already."""

        def make() -> str:
            try:
                return super(RemoteEngine, self).create(name, spec)
            except LaneError as error:
                cause = error.__cause__
                if tries and isinstance(cause, APIError) and cause.status_code == _CONFLICT:
                    return name
                tries.append(error)
                raise

        tries: list[LaneError] = []
        return self._patiently(make)

    def start(self, container: str) -> None:
        self._patiently(lambda: super(RemoteEngine, self).start(container))

    def signal(self, container: str, name: str) -> bool:
        return self._patiently(lambda: super(RemoteEngine, self).signal(container, name))

    def state(self, container: str) -> State:
        return self._patiently(lambda: super(RemoteEngine, self).state(container))

    def wait(self, container: str) -> None:
        self._patiently(lambda: super(RemoteEngine, self).wait(container))

    def printed(self, container: str) -> str:
        return self._patiently(lambda: super(RemoteEngine, self).printed(container))

    def put(self, container: str, path: str, files: Mapping[str, bytes], *, mode: int = 0o444) -> None:
        self._patiently(lambda: super(RemoteEngine, self).put(container, path, files, mode=mode))

    def remove(self, container: str) -> None:
        self._patiently(lambda: super(RemoteEngine, self).remove(container))

    def create_volume(self, name: str, *, role: str, quota: int | None = None) -> None:
        self._patiently(lambda: super(RemoteEngine, self).create_volume(name, role=role, quota=quota))

    def remove_volume(self, name: str) -> None:
        self._patiently(lambda: super(RemoteEngine, self).remove_volume(name))

    def labelled_containers(self) -> list[tuple[str, dict[str, str]]]:
        return self._patiently(super().labelled_containers)

    def watched(self) -> frozenset[str]:
        return self._patiently(super().watched)

    def labelled_volumes(self) -> list[tuple[str, dict[str, str]]]:
        return self._patiently(super().labelled_volumes)

    def archive(self, container: str, path: str, *, limit: int | None = None) -> Generator[bytes, None, None]:
        """A folder of a container as tar: fetched whole before the first block, so that it can be fetched again.

        Beyond `limit` bytes of files, or LARGEST_ARCHIVE, it is cut off, and its reader says that the rest is missing.
        """
        largest = (LARGEST_ARCHIVE if limit is None else limit) + _HEADERS
        with TemporaryFile() as file:

            def fetch() -> None:
                file.seek(0)
                file.truncate()
                with closing(super(RemoteEngine, self).archive(container, path)) as blocks:
                    for block in blocks:
                        file.write(block)
                        if file.tell() > largest:
                            return

            self._patiently(fetch)
            file.seek(0)
            while block := file.read(_BLOCK):
                yield block


def _lost(error: LaneError) -> bool:
    """Whether it was the connection that failed, not the engine that refused."""
    cause = error.__cause__
    return isinstance(cause, RequestException | OSError) and not isinstance(cause, DockerException)
