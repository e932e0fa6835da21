"""The hosts of real links over SSH, and their Docker Engines."""

import contextlib
import functools
import logging
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import docker
import paramiko
from docker.errors import APIError, DockerException
from paramiko.common import cMSG_CHANNEL_OPEN
from paramiko.ssh_exception import IncompatiblePeer
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from runner.engine.containers import BoundedDockerClient, ContainerSpec, Engine
from runner.errors import HostRefusedError, LaneError, SetupError
from runner.model.link import RemoteHost
from runner.places.lanes.lanes import PATIENCE_SECONDS
from runner.places.supervised import CAPTURE_LIMIT
from runner.units import MIB, format_duration

# One SSH connection to a host. Its key is known beforehand, no agent or port is forwarded, and every wait has a limit.
#
# The engine's socket on the host is reached through `direct-streamlocal` channels. They need no process on the host,
# and sshd's MaxSessions doesn't count them (OpenSSH PROTOCOL, 2.4).

CONNECT_SECONDS = 20.0  # seconds each for TCP, banner, key exchange and login
_CHANNEL_SECONDS = 20.0
_KEEPALIVE_SECONDS = 5
_LONGEST_ANSWER = 4096  # most bytes of a host's answer
_DEAD_MILLISECONDS = 20_000  # without an acknowledgment, after which the connection counts as lost
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")

# paramiko's threads log tracebacks of lost connections. Callers get these errors as exceptions.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class HostLostError(SetupError):
    """The host can't be reached now. Another try may help."""


class _Transport(paramiko.Transport):
    """A transport with channels to a Unix socket of the other host. paramiko (5.1.0, pinned) has no such channels."""

    active: bool
    _channels: Any
    _next_channel: Callable[[], int]
    _send_user_message: Callable[[paramiko.Message], None]
    _unlink_channel: Callable[[int], None]

    def open_streamlocal(self, path: str, *, timeout: float) -> paramiko.Channel:
        """A channel to the socket `path`. Raises SSHException (ChannelException when the other side refuses)."""
        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_OPEN)
        message.add_string("direct-streamlocal@openssh.com")
        with self.lock:
            number = self._next_channel()
            channel: Any = paramiko.Channel(number)
            self._channels.put(number, channel)
            self.channel_events[number] = opened = threading.Event()
            self.channels_seen[number] = True
            channel._set_transport(self)
            channel._set_window(self.default_window_size, self.default_max_packet_size)
        message.add_int(number)
        message.add_int(self.default_window_size)
        message.add_int(self.default_max_packet_size)
        message.add_string(path)
        message.add_string("")  # reserved
        message.add_int(0)  # reserved
        self._send_user_message(message)
        opened.wait(timeout)
        if not self.active:
            raise self.get_exception() or paramiko.SSHException("the connection was lost")
        if not opened.is_set():
            self._unlink_channel(number)
            raise paramiko.SSHException("no answer to a new channel")
        open_channel: paramiko.Channel | None = self._channels.get(number)
        if open_channel is None:
            raise self.get_exception() or paramiko.SSHException("the channel was refused")
        return open_channel


class SshConnection:
    """An SSH connection. It is made at its first use, and again after it was lost. Thread-safe."""

    def __init__(self, host: RemoteHost) -> None:
        self.host = host
        self._lock = threading.Lock()
        self._transport: _Transport | None = None
        self._closed = False
        self.connects = 0  # number of connections made so far

    @property
    def alive(self) -> bool:
        transport = self._transport
        return transport is not None and transport.is_active()

    def connect(self) -> _Transport:
        """The live connection. Raises HostRefusedError or HostLostError, each with the fix."""
        with self._lock:
            if self._closed:
                raise HostLostError(f"{self.host.name}: the connection is closed.")
            if self._transport is None or not self._transport.is_active():
                self._drop()
                self._transport = self._connected()
                self.connects += 1
            return self._transport

    def open_socket(self, path: str) -> paramiko.Channel:
        """A stream to a Unix socket on the host. Raises HostRefusedError or HostLostError."""
        transport = self.connect()
        host = self.host
        try:
            return transport.open_streamlocal(path, timeout=_CHANNEL_SECONDS)
        except paramiko.ChannelException as error:
            # OpenSSH 9.2 reports "connect failed" for every reason.
            raise HostLostError(
                f"{host.name}: {path} can't be reached over SSH: start Docker there, put {host.user} into the group "
                "docker, and let sshd_config have `AllowStreamLocalForwarding yes`, its default."
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise HostLostError(f"{host.name}: the SSH connection was lost ({_reason(error)}).") from error

    def own_address(self) -> str:
        """The address of this computer as the host sees it, also behind a NAT; empty when it isn't reported."""
        try:
            channel = self.connect().open_session(timeout=_CHANNEL_SECONDS)
            channel.settimeout(_CHANNEL_SECONDS)
            channel.exec_command("echo $SSH_CONNECTION")
            words = _answer(channel).decode(errors="replace").split()
            channel.close()
        except (paramiko.SSHException, OSError, EOFError):
            return ""  # the login may allow only forwarding; other candidates remain
        return words[0] if len(words) == 4 else ""

    def peer_address(self) -> str:
        """The host's address at the other end of the connection; a name in links.json may have several."""
        return str(self.connect().getpeername()[0])

    def close(self) -> None:
        """Close the connection; later calls are refused."""
        with self._lock:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _connected(self) -> _Transport:
        host = self.host
        try:
            plain = socket.create_connection((host.address, host.port), timeout=CONNECT_SECONDS)
        except socket.gaierror as error:
            raise HostRefusedError(
                f"{host.name}: the name {host.address} is not known ({error.strerror}): fix `ssh` in links.json."
            ) from error
        except OSError as error:
            raise HostLostError(
                f"{host.name}: no SSH server answers at {host.address} port {host.port} ({_reason(error)})."
            ) from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MILLISECONDS)
        try:
            transport = _Transport(plain)
        except (paramiko.SSHException, OSError, EOFError) as error:
            plain.close()
            raise HostLostError(f"{host.name}: the SSH server went away ({_reason(error)}).") from error
        try:
            self._shake_hands(transport)
        except BaseException:
            transport.close()
            raise
        return transport

    def _shake_hands(self, transport: _Transport) -> None:
        """Check the host's key before anything else, then log in."""
        host = self.host
        kind, expected = host.host_key.split()
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = CONNECT_SECONDS
        # A host may have several keys: request the type of the known key.
        transport.get_security_options().key_types = _RSA_SIGNATURES if kind == "ssh-rsa" else (kind,)
        try:
            transport.start_client(timeout=CONNECT_SECONDS)
            known = transport.get_remote_server_key().get_base64()  # raises when the time is over
        except IncompatiblePeer as error:
            raise HostRefusedError(
                f"{host.name}: it has no host key of type {kind}, or none of our ciphers: look with `ssh-keyscan`."
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise HostLostError(f"{host.name}: SSH could not begin ({_reason(error)}).") from error
        if known != expected:
            raise HostRefusedError(
                f"{host.name}: the host key of {host.address} differs from the key in links.json: either the host was "
                "installed again (ask its administrator, then enter the new key), or another host answers in its place."
            )
        for key in self._keys():
            try:
                if not transport.auth_publickey(host.user, key):
                    transport.set_keepalive(_KEEPALIVE_SECONDS)
                    return
            except paramiko.AuthenticationException:
                continue
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise HostLostError(f"{host.name}: the login broke off ({_reason(error)}).") from error
        which = "the key in links.json" if host.key else "any key of the SSH agent"
        raise HostRefusedError(
            f"{host.name}: {host.user}@{host.address} does not accept {which}: add its public key to "
            f"~{host.user}/.ssh/authorized_keys there."
        )

    def _keys(self) -> tuple[paramiko.PKey, ...]:
        if self.host.key is None:
            return tuple(paramiko.Agent().get_keys())
        return (_private_key(self.host.name, self.host.key),)


def _private_key(name: str, path: Path) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(path)
    except (paramiko.SSHException, OSError, ValueError, TypeError) as error:
        needed = isinstance(error, paramiko.PasswordRequiredException)
        if needed or "password" in str(error).lower() or "passphrase" in str(error).lower():
            raise HostRefusedError(
                f"{name}: the private key {path} has a passphrase: add it to an SSH agent with `ssh-add`, and leave "
                "`key` out of links.json."
            ) from error
        raise HostRefusedError(f"{name}: {path} can't be read as a private key ({_reason(error)}).") from error


def _answer(channel: paramiko.Channel) -> bytes:
    """The output of a command, limited in size and time. Raises OSError beyond these limits."""
    deadline = time.monotonic() + _CHANNEL_SECONDS
    answer = b""
    while len(answer) < _LONGEST_ANSWER and (data := channel.recv(_LONGEST_ANSWER)):
        answer += data
        if time.monotonic() > deadline:
            raise TimeoutError("the answer never ends")
    return answer


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


# Offers the Docker Engine of a remote host as a Unix socket of this host, so that Docker clients use it like a local
# engine. Each connection to the socket becomes a channel of one SSH connection. When the SSH connection was lost, it is
# made again for the next connection to the socket.

_BLOCK = 32 * 1024  # bytes; paramiko sends at most this many at once, and would copy the rest of a larger block
_RETRY_SECONDS = 1.0


class Tunnel:
    """The socket and its connections. `url` is the address for Docker clients. `close` ends the tunnel."""

    def __init__(self, connection: SshConnection, *, patience: float = 60.0) -> None:
        self.connection = connection
        self.carried = 0  # bytes, both directions
        self.charged = 0  # bytes that were already charged to the link
        self.failure: SetupError | None = None  # why the last connection failed
        self._patience = patience  # seconds in which connections to a lost host are tried again
        self._folder = Path(tempfile.mkdtemp(prefix="bentpipe-ssh-"))  # 0700: access to the engine means root's rights
        path = self._folder / "docker.sock"
        self.url = f"unix://{path}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._ends = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name=f"tunnel-{connection.host.name}", daemon=True).start()

    def close(self) -> None:
        """Close the socket and the SSH connection with all channels."""
        self._ends.set()
        self.connection.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        while not self._ends.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), name="tunnel", daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near:
            far = self._open(near)
            if far is None:
                return
            try:
                up = threading.Thread(target=self._pump, args=(near.recv, far.sendall, far.shutdown_write), daemon=True)
                up.start()
                self._pump(far.recv, near.sendall, lambda: near.shutdown(socket.SHUT_WR))
                if not self.connection.alive:
                    with contextlib.suppress(OSError):
                        near.shutdown(socket.SHUT_RDWR)
                up.join()
            finally:
                with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                    far.close()

    def _open(self, near: socket.socket) -> paramiko.Channel | None:
        """A channel to the engine. When the host is lost, the connection is tried again, until the patience is over or
        the client of the socket has hung up. Returns None without a connection; `failure` is then the reason."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                channel = self.connection.open_socket(self.connection.host.docker_socket)
            except HostLostError as error:
                self.failure = error
                if time.monotonic() > deadline or self._ends.wait(_RETRY_SECONDS) or _hung_up(near):
                    return None
            except SetupError as error:
                self.failure = error
                return None
            else:
                self.failure = None
                return channel

    def _pump(
        self, read: Callable[[int], bytes], write: Callable[[bytes], object], finish: Callable[[], object]
    ) -> None:
        try:
            while data := read(_BLOCK):
                write(data)
                with self._lock:
                    self.carried += len(data)
        except (OSError, EOFError, paramiko.SSHException):
            pass  # a client that waits for an answer reads the end of the stream
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            finish()


def _hung_up(near: socket.socket) -> bool:
    poll = select.poll()
    poll.register(near, select.POLLRDHUP)
    return bool(poll.poll(0))


# The engine of a remote host: the calls of a local engine, repeated when the SSH connection is lost.

HOST_LOST = "host-lost"  # code of the LaneError for a host that can't be reached
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_CALL_SECONDS = 60
_CONFLICT = 409
_ARCHIVE_BLOCK = 1 << 20
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
        connection = SshConnection(host)
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
        or does not come back. `say` is called with a sentence when the host doesn't answer."""
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
        """Repeat a call for up to a minute until the host answers. Raises the engine's LaneError, or `host-lost`."""
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

    def archive(self, container: str, path: str, *, limit: int | None = None) -> Generator[bytes, None, None]:
        """A folder of a container as tar. All of it is fetched before the first block is yielded, so that the call can
        be repeated. The tar ends after `limit` bytes of files, or after LARGEST_ARCHIVE; the reader then reports that a
        part is missing."""
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
            while block := file.read(_ARCHIVE_BLOCK):
                yield block


# The calls that may be repeated after the connection was lost.
_REPEATED = (
    *("start", "signal", "state", "layer_size", "wait", "printed", "execute", "put", "remove"),
    *("create_volume", "remove_volume", "labelled_containers", "watched", "labelled_volumes"),
)


def _repeating(name: str) -> Callable[..., Any]:
    call = getattr(Engine, name)

    @functools.wraps(call)
    def patient(self: RemoteEngine, *arguments: Any, **options: Any) -> Any:
        return self._patiently(lambda: call(self, *arguments, **options))

    return patient


for _name in _REPEATED:
    setattr(RemoteEngine, _name, _repeating(_name))


def _lost(error: LaneError) -> bool:
    """True when the connection failed, False when the engine refused the call."""
    cause = error.__cause__
    lost = isinstance(cause, RequestException | HTTPError | OSError) and error.code != "not-an-engine"
    return lost and not isinstance(cause, DockerException)
