"""The engine of a remote host: the calls of a local engine, repeated when the SSH connection is lost."""

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from tempfile import TemporaryFile
from typing import TypeVar

import docker
from docker.errors import APIError, DockerException
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from runner.engine.client import BoundedDockerClient
from runner.engine.containers import ContainerSpec, Engine, State
from runner.errors import HostRefusedError, LaneError, SetupError
from runner.lanes.holders import CAPTURE_LIMIT
from runner.lanes.lanes import PATIENCE_SECONDS
from runner.model.real_link import RemoteHost
from runner.remote.ssh import Connection, HostLostError
from runner.remote.tunnel import Tunnel
from runner.units import MIB, format_duration

HOST_LOST = "host-lost"  # code of the LaneError for a host that can't be reached
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_CALL_SECONDS = 60
_CONFLICT = 409
_BLOCK = 1 << 20
LARGEST_ARCHIVE = CAPTURE_LIMIT  # most bytes of a folder or file that are copied from another host
_HEADERS = 8 * MIB  # most bytes of the headers of an archive, about 1.5 KiB for each file

Value = TypeVar("Value")


class RemoteEngine(Engine):
    """Construct with `open`. When the connection is lost, a call is repeated for a minute at most."""

    longest_look = 20.0  # longer than in lanes, because SSH may use the link

    def __init__(self, client: docker.DockerClient, labels: Mapping[str, str], tunnel: Tunnel) -> None:
        super().__init__(client, labels, url=tunnel.url, call_seconds=_CALL_SECONDS)
        self.tunnel = tunnel

    @classmethod
    def open(cls, host: RemoteHost, labels: Mapping[str, str]) -> "RemoteEngine":
        """Connect to the engine of `host`. Raises SetupError with the problem and the fix."""
        connection = Connection(host)
        connection.connect()
        tunnel = Tunnel(connection, patience=_PATIENCE_SECONDS)
        try:
            client = BoundedDockerClient(tunnel.url, version="auto", timeout=_CALL_SECONDS)
            return cls(client, labels, tunnel)
        except LaneError as error:
            tunnel.close()
            raise tunnel.failure or SetupError(f"{host.name}: {error}") from error
        except (DockerException, RequestException, HTTPError, OSError) as error:
            tunnel.close()
            raise tunnel.failure or SetupError(f"{host.name}: its Docker Engine doesn't answer ({error}).") from error
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            tunnel.close()
            raise SetupError(f"{host.name}: {host.docker_socket} is not the socket of a Docker Engine.") from error

    @property
    def name(self) -> str:
        return self.tunnel.connection.host.name

    def require_welcome(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        """Wait until the engine answers, for example after an upgrade of Docker on its host. The longest wait is the
        same as the wait of lanes for the engine of this host. Raises HostRefusedError when the host refuses the login
        or does not come back. `say` is called with a sentence when the host doesn't answer.
        """
        deadline, reported = time.monotonic() + PATIENCE_SECONDS, False
        while True:
            try:
                self.tunnel.connection.connect()
                with self._call("answer") as api:
                    api.ping()
                return
            except HostLostError as error:
                away = str(error)
            except LaneError as error:
                if not _lost(error):
                    raise
                away = str(self.tunnel.failure or error)
            if stop.is_set() or time.monotonic() > deadline:
                raise HostRefusedError(f"{away} It was away for {format_duration(PATIENCE_SECONDS)}.")
            if not reported:
                say(f"{self.name} is away. Waiting for it, {format_duration(PATIENCE_SECONDS)} at most.")
                reported = True
            stop.wait(_PAUSE_SECONDS)

    def close(self) -> None:
        super().close()
        self.tunnel.close()

    def _patiently(self, call: Callable[[], Value]) -> Value:
        """Repeat a call until the host answers, for a minute at most. Raises the engine's LaneError, or LaneError
        `host-lost`."""
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
        """Create a container. It may already exist, because the answer to an earlier try may have been lost."""

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

    def layer_size(self, container: str) -> int:
        return self._patiently(lambda: super(RemoteEngine, self).layer_size(container))

    def wait(self, container: str) -> None:
        self._patiently(lambda: super(RemoteEngine, self).wait(container))

    def printed(self, container: str) -> str:
        return self._patiently(lambda: super(RemoteEngine, self).printed(container))

    def execute(self, container: str, command: list[str]) -> tuple[int, str]:
        """Run a command, and run it again when the connection is lost."""
        return self._patiently(lambda: super(RemoteEngine, self).execute(container, command))

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
        """A folder of a container as tar. All of it is fetched before the first block is yielded, so that the call can
        be repeated. The tar ends after `limit` bytes of files, or after LARGEST_ARCHIVE; the reader then reports that a
        part is missing.
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
    """True when the connection failed, False when the engine refused the call."""
    cause = error.__cause__
    lost = isinstance(cause, RequestException | HTTPError | OSError) and error.code != "not-an-engine"
    return lost and not isinstance(cause, DockerException)
