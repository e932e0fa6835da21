"""Hosts behind a link, made of network namespaces. Each has its own SSH server, users and Docker Engine.

This host does not change: the SSH server is unpacked, not installed, and its users are in files that only the namespace
sees. `close` always removes everything.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import docker
from docker.errors import DockerException

from runner.model.link import RemoteHost

PACKAGES = ("openssh-server", "libwrap0", "ethtool", "libmnl0")  # two tools, and libraries that may be missing
CACHE = Path(tempfile.gettempdir()) / f"bentpipe-test-tools-{os.getuid()}"
USER, UID, GID = "measure", 61234, 61235
READY_SECONDS = 30.0


def lacking() -> str:
    """The reason why no host can be made on this machine; empty when a host can be made."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if missing := [
        tool for tool in ("dockerd", "nsenter", "unshare", "ip", "iptables", "ssh-keygen") if not shutil.which(tool)
    ]:
        return f"without {', '.join(missing)}"
    if not (_tool("sshd") and _tool("ethtool")):
        _unpack(*PACKAGES)
    if not (_tool("sshd") and _tool("ethtool")):
        return f"{' and '.join(PACKAGES)} can't be downloaded"
    return ""


def _tool(name: str) -> str:
    """The path of the installed or the unpacked program; empty when it is missing."""
    installed = shutil.which(name, path="/usr/sbin:/sbin")
    return installed or next((str(path) for path in CACHE.rglob(name) if path.parent.name == "sbin"), "")


def _libraries() -> dict[str, str]:
    """The environment in which unpacked tools find their libraries."""
    return {"LD_LIBRARY_PATH": ":".join(sorted({str(path.parent) for path in CACHE.rglob("lib*.so.0")}))}


def _unpack(*packages: str) -> None:
    """Unpack packages into CACHE, as far as they are available."""
    if not shutil.which("apt-get"):
        return
    CACHE.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(["apt-get", "download", *packages], cwd=CACHE, capture_output=True, check=False)
    for package in CACHE.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, CACHE], check=True)


def shifted_clock() -> Path | None:
    """The path of libfaketime, which sets the wall clock of a process; None when it is not available."""
    if not (outcome := sorted(CACHE.rglob("libfaketime.so.1"))):
        _unpack("libfaketime")
        outcome = sorted(CACHE.rglob("libfaketime.so.1"))
    return outcome[0] if outcome else None


def offloads_off(interface: str, *, inside: Sequence[str] = ()) -> None:
    """Switch offloads of `interface` off, so that it sends packets as a link carries them. `inside`: the words of the
    command that enters its namespace."""
    words = ("tx", "off", "tso", "off", "gso", "off", "gro", "off")
    run(*inside, _tool("ethtool"), "-K", interface, *words, **_libraries())


def run(*command: str | Path, **environment: str) -> str:
    """The output of a command, with `environment` added to this process'. Raises with the command's errors."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr}"
    return done.stdout


def free_number() -> int:
    """A number for `Host` and `Satellite` whose addresses are free, even when these tests run twice at the same
    time."""
    taken = run("ip", "-o", "address")
    return next(number for number in range(1 + os.getpid() % 100, 250) if f" 10.213.{number}." not in taken)


class Host:
    """One namespace. `number` (1 to 250) makes its addresses: 10.213.N.2, with this host at 10.213.N.1."""

    def __init__(self, folder: Path, number: int, *, disk: int = 0) -> None:
        """`disk`: bytes of the host's own disk for Docker; 0: it uses the disk of this machine."""
        self.name = f"bpt{os.getpid() % 100000}-{number}"
        self.folder = folder / f"host{number}"
        self.folder.mkdir(parents=True)
        self.number = number
        self.address, self.our_address = f"10.213.{number}.2", f"10.213.{number}.1"
        self.data = self.folder / "docker"
        self._disk = disk
        self._anchor: subprocess.Popen[bytes] | None = None
        self._sshd: subprocess.Popen[bytes] | None = None
        self._dockerd: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def open(self, *, engine: bool = True) -> "Host":
        """Start the namespace, the management network and the SSH server. With `engine`, also start a Docker Engine and
        wait until it answers."""
        run("ip", "netns", "add", self.name)
        ours = f"{self.name}m"
        run("ip", "link", "add", ours, "type", "veth", "peer", "name", "mgmt0", "netns", self.name)
        run("ip", "address", "add", f"{self.our_address}/30", "dev", ours)
        run("ip", "link", "set", ours, "up")
        # The README requires this, so that captures show single datagrams.
        offloads_off(ours)
        offloads_off("mgmt0", inside=("nsenter", f"--net=/run/netns/{self.name}"))
        for words in (f"address add {self.address}/30 dev mgmt0", "link set mgmt0 up", "link set lo up"):
            run("ip", "-n", self.name, *words.split())
        self._write_accounts()
        script = (
            f"set -e; hostname {self.name}; mount -t tmpfs tmpfs /run; mkdir -p /run/sshd; "
            + "".join(f"mount --bind {self.folder}/{name} /etc/{name}; " for name in ("passwd", "group", "shadow"))
            + f"echo > {self.folder}/anchored; exec sleep infinity"
        )
        self._anchor = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount", "--uts", "sh", "-c", script],
            start_new_session=True,  # so that Ctrl-C doesn't end it; `close` finds the processes by the namespace
        )
        self._pid = self._anchor.pid
        _until((self.folder / "anchored").exists, "the namespace")
        self.authorize("key")
        self.start_ssh()
        if engine:
            self.start_engine()
        return self

    def _write_accounts(self) -> None:
        (self.folder / "passwd").write_text(
            "root:x:0:0:root:/root:/bin/sh\nsshd:x:61233:65534::/run/sshd:/usr/sbin/nologin\n"
            f"{USER}:x:{UID}:{GID}::/:/bin/sh\nnobody:x:65534:65534::/:/usr/sbin/nologin\n"
        )
        (self.folder / "group").write_text(f"root:x:0:\nnogroup:x:65534:\ndocker:x:{GID}:{USER}\n")
        (self.folder / "shadow").write_text(f"root:*:1::::::\nsshd:*:1::::::\n{USER}:*:1::::::\n")
        for name in ("host_key", "other_host_key", "key", "other_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", self.folder / name)

    def authorize(self, key: str) -> None:
        """Allow logins with only this key."""
        # The user must be able to read this file, because sshd opens it with the user's rights.
        Path(f"/proc/{self._pid}/root/run/authorized_keys").write_text((self.folder / f"{key}.pub").read_text())

    def remote(self, *, key: str = "key", host_key: str = "host_key", docker_socket: str = "") -> RemoteHost:
        """This host as an entry of links.json."""
        return RemoteHost(
            name=self.name,
            user=USER,
            address=self.address,
            port=22,
            host_key=" ".join((self.folder / f"{host_key}.pub").read_text().split()[:2]),
            key=self.folder / key,
            docker_socket=docker_socket or "/run/docker.sock",
        )

    def start_ssh(self, *, host_key: str = "host_key", options: str = "") -> None:
        """Start the SSH server; `options` are lines of its configuration."""
        config = self.folder / "sshd_config"
        config.write_text(
            f"ListenAddress 0.0.0.0\nHostKey {self.folder}/{host_key}\nAuthorizedKeysFile /run/authorized_keys\n"
            "StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nMaxSessions 10\nLogLevel VERBOSE\n"
            f"{options}\n"
        )
        log = self.folder / "sshd.log"
        with log.open("ab") as file:
            self._sshd = self._inside([_tool("sshd"), "-D", "-e", "-f", str(config)], file, **_libraries())
        _until(lambda: b"Server listening" in log.read_bytes().rpartition(b"Received signal")[2], "sshd")

    def restart_ssh(self, *, away: float = 3.0, **how: str) -> None:
        """End the SSH server and its connections, and start it again after `away` seconds. `how`: the arguments of
        start_ssh."""
        self.stop_ssh()
        time.sleep(away)
        self.start_ssh(**how)

    def restart_engine(self) -> None:
        """Restart Docker on the host. There is no engine for 2 s."""
        self.stop_engine()
        time.sleep(2.0)
        self.start_engine()

    def reboot(self) -> None:
        """Restart the host. There is no SSH server and no engine for 5 s, and all containers end."""
        self.stop_ssh()
        self.stop_engine()
        time.sleep(5.0)
        self.start_engine()
        self.start_ssh()

    def stop_ssh(self) -> None:
        """End the SSH server and all its connections, without a message to the peers."""
        self._end(self._sshd)
        for pid in self._processes("sshd"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (self.folder / "sshd.log").unlink()

    def start_engine(self) -> None:
        """Start the Docker Engine and wait until it answers."""
        if not self.data.is_dir():
            self.data.mkdir()
            if self._disk:
                image = self.folder / "disk.ext4"
                run("truncate", "-s", str(self._disk), image)
                run("mkfs.ext4", "-q", image)
                run("nsenter", "-t", str(self._pid), "--mount", "mount", "-o", "loop", image, self.data)
        with (self.folder / "dockerd.log").open("ab") as log:
            self._dockerd = self._inside(
                [
                    *("dockerd", "--data-root", str(self.data), "--exec-root", "/run/docker"),
                    *("--pidfile", "/run/docker.pid", "-H", "unix:///run/docker.sock"),
                    *("-H", f"unix://{self.socket}"),
                    "--storage-driver=overlay2",
                ],
                log,
            )
        _until(self._engine_answers, f"dockerd ({self.folder}/dockerd.log)")

    def stop_engine(self) -> None:
        """End the Docker Engine like its service manager does. Its containers end with it."""
        if self._dockerd is not None:
            self._dockerd.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._dockerd.wait(20)
        self._end(self._dockerd)

    def _engine_answers(self) -> bool:
        try:
            self.engine().ping()
        except (DockerException, OSError):
            return False
        return True

    def engine(self) -> docker.DockerClient:
        """A client of the host's engine that doesn't use SSH. The tests inspect the host with it."""
        return docker.DockerClient(f"unix:///proc/{self._pid}/root/run/docker.sock", version="1.41", timeout=60)

    @property
    def anchor(self) -> int:
        """The process that holds the host's namespaces."""
        return self._pid

    @property
    def socket(self) -> Path:
        """The socket of the host's engine. Its path is the same inside the host and on this machine."""
        return self.folder / "docker.sock"

    def load(self, *images: str) -> None:
        """Load images of this machine into the host's engine without SSH, because only one test is about sending
        images."""
        local = docker.from_env()
        for image in images:
            if local.images.list(name=image):
                for _ in self.engine().api.load_image(local.api.get_image(image)):  # type: ignore[no-untyped-call]
                    pass

    def states(self) -> list[tuple[str, str]]:
        """Name and state of all containers of the host."""
        containers = self.engine().containers.list(all=True, ignore_removed=True)
        return [(str(container.name), str(container.status)) for container in containers]

    def fill_disk(self) -> None:
        """Fill the host's own disk at once. Writing zeros would take so long that a transfer could end before."""
        more = ("fallocate", "-l", str(self._disk), str(self.data / "filling"))  # fails, but fills the disk
        subprocess.run(["nsenter", "-t", str(self._pid), "--mount", *more], capture_output=True, check=False)
        assert os.statvfs(f"/proc/{self._pid}/root{self.data}").f_bavail == 0, "the disk is not full"

    def free_disk(self) -> None:
        """Free the space that `fill_disk` took."""
        run("nsenter", "-t", str(self._pid), "--mount", "rm", f"{self.data}/filling")

    def containers(self) -> list[str]:
        """Names of all containers of the host, running or not."""
        return [str(container.name) for container in self.engine().containers.list(all=True, ignore_removed=True)]

    def _inside(self, command: list[str], output: IO[bytes], **environment: str) -> subprocess.Popen[bytes]:
        enter = ["nsenter", "-t", str(self._pid), "--mount", "--net", "--uts", "--"]
        return subprocess.Popen(
            [*enter, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            start_new_session=True,
        )

    def _processes(self, name: str = "") -> list[int]:
        """Ids of the processes in the host's mount namespace, without the anchor."""
        mine = Path(f"/proc/{self._pid}/ns/mnt").readlink() if self._pid else None
        collected = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                inside = (process / "ns" / "mnt").readlink() == mine and int(process.name) != self._pid
                if inside and name in (process / "comm").read_text():
                    collected.append(int(process.name))
        return collected

    @staticmethod
    def _end(process: subprocess.Popen[bytes] | None) -> None:
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Remove everything: containers, engine, SSH server, namespace, files."""
        with contextlib.suppress(DockerException, OSError, AssertionError):
            for container in self.engine().containers.list(all=True, ignore_removed=True):
                container.remove(force=True, v=True)
        self._end(self._dockerd)  # no SIGTERM, which would take 10 s; all files of the engine are deleted
        for _ in range(3):  # the shims and containerd outlive dockerd
            for pid in self._processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._end(self._sshd)
        self._end(self._anchor)
        for words in (["link", "del", f"{self.name}m"], ["netns", "del", self.name]):
            subprocess.run(["ip", *words], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def _until(holds: Callable[[], object], subject: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{subject} is not ready after {READY_SECONDS:.0f} s"
        time.sleep(0.05)
