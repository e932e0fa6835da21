"""One SSH connection to a host. Its key is known beforehand, no agent or port is forwarded, and every wait has a limit.

The engine's socket on the host is reached through `direct-streamlocal` channels. They need no process on the host, and
sshd's MaxSessions doesn't count them (OpenSSH PROTOCOL, 2.4).
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_OPEN
from paramiko.ssh_exception import IncompatiblePeer

from runner.errors import HostRefusedError, SetupError
from runner.model.real_link import RemoteHost

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


class Connection:
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
        """The address of this computer as the host sees it, also behind a NAT; empty when the host doesn't report
        it."""
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
        """The address of the host at the other end of the connection; a name in links.json may have several
        addresses."""
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
    except paramiko.PasswordRequiredException as error:
        raise HostRefusedError(
            f"{name}: the private key {path} has a passphrase: add it to an SSH agent with `ssh-add`, and leave `key` "
            "out of links.json."
        ) from error
    except (paramiko.SSHException, OSError, ValueError, TypeError) as error:
        if "password" in str(error).lower() or "passphrase" in str(error).lower():
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
