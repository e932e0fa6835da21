"""Runs a pair of real images on both sides of the proxy, with namespaces, containers and captures. Needs root and
Docker.

The module uses no code of `runner/places`. Two containers hold a network namespace each, veth pairs lead to the
namespace of the proxy, and tcpdump runs at each endpoint's interface.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.proxy import CLIENT_SIDE
from runner.inputs.inputs import certificates
from runner.paths import ROOT

_ADDRESS = {"client": "193.167.0.100", "server": "193.167.100.100"}
_NEXT = {"client": "193.167.0.2", "server": "193.167.100.2"}
_FILE = "response"
_TOOLS = "bentpipe/tools"
_READY = 1.0  # s until a server listens
_DRAIN = 1.0  # s for which captures go on after the end
_BIND = "{}:{}:ro"


class ProxiedError(Exception):
    """A transfer that ended without the file; the message gives the reason."""


@dataclass(frozen=True)
class Pair:
    """The stacks of a transfer, their link and the server's disk."""

    server: str
    client: str
    spec: dict[str, Any]
    """The proxy's JSON document, with `size` in bytes."""
    read_rate: int | None = None
    """Bytes per second that the server can read from its disk; None: the file is in memory."""


def transfer(pair: Pair, folder: Path, name: str, seconds: float) -> None:
    """Run the transfer and leave captures, key logs and passages in `folder`. Raises ProxiedError."""
    (folder / "spec.json").write_text(json.dumps(pair.spec, indent=1))
    with ExitStack() as stack:
        inputs = folder / "inputs"
        stack.callback(shutil.rmtree, inputs, ignore_errors=True)
        _make_inputs(inputs, pair)
        between = stack.enter_context(_namespace(f"{name}-link"))
        holders = {role: stack.enter_context(_holder(f"{name}-{role}", pair, role)) for role in _ADDRESS}
        for role, pid in holders.items():
            _wire(between, role, pid)
        proxy = stack.enter_context(
            _running(between, [sys.executable, "-m", "lab.proxy", str(folder / "spec.json"), str(folder)])
        )
        for role in holders:
            stack.enter_context(_capture(f"{name}-{role}", folder / f"{role}.pcap"))
        time.sleep(0.5)
        _endpoints(stack, pair, name, inputs, seconds)
        time.sleep(_DRAIN)
        if proxy.poll() is not None:
            raise ProxiedError(f"the proxy ended with {proxy.returncode}")
    keys = [log.read_text() for log in sorted(folder.glob("*.keys"))]
    (folder / "keys.log").write_text("".join(keys))


def _make_inputs(inputs: Path, pair: Pair) -> None:
    for name in ("www", "certs", "downloads", "client", "server"):
        (inputs / name).mkdir(parents=True)
    made = certificates()
    for name, text in made.files().items():
        (inputs / "certs" / name).write_bytes(text)
    path = inputs / "www" / _FILE
    path.write_bytes(os.urandom(pair.spec["size"]))
    if pair.read_rate is not None:
        with path.open("rb") as file:  # remove the file from the cache, so that the server must read from the disk
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProxiedError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


@contextmanager
def _namespace(name: str) -> Iterator[str]:
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        _run("ip", "netns", "del", name)


@contextmanager
def _holder(name: str, pair: Pair, role: str) -> Iterator[int]:
    """A container that holds an endpoint's network namespace; yields the id of its process."""
    image = f"bentpipe/{pair.server if role == 'server' else pair.client}"
    hosts = [f"--add-host={host}:{CLIENT_SIDE[0]}" for host in ("server", "server4", "sim")]
    _run(
        "docker",
        "run",
        "--rm",
        "--detach",
        "--network=none",
        f"--name={name}",
        *hosts,
        "--entrypoint=sleep",
        image,
        "600",
    )
    try:
        yield int(_run("docker", "inspect", "--format={{.State.Pid}}", name))
    finally:
        _run("docker", "rm", "--force", name)


def _wire(between: str, role: str, pid: int) -> None:
    near, far = ("left" if role == "client" else "right"), "eth0"
    _run("ip", "-n", between, "link", "add", near, "type", "veth", "peer", "name", far, "netns", str(pid))
    _run("ip", "-n", between, "address", "add", f"{_NEXT[role]}/24", "dev", near)
    _run("ip", "-n", between, "link", "set", near, "up")
    inside = ("nsenter", "--target", str(pid), "--net")
    _run(*inside, "ip", "address", "add", f"{_ADDRESS[role]}/24", "dev", far)
    _run(*inside, "ip", "link", "set", far, "up")


@contextmanager
def _running(namespace: str, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace, *command], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


@contextmanager
def _capture(holder: str, path: Path) -> Iterator[None]:
    name = f"{holder}-capture"
    command = ["tcpdump", "-i", "eth0", "-U", "-s", "0", "-Z", "root", "--time-stamp-precision=nano", "udp"]
    _run(
        "docker",
        "run",
        "--rm",
        "--detach",
        f"--name={name}",
        f"--network=container:{holder}",
        "--cap-add=NET_RAW",
        f"--volume={path.parent}:/captures",
        "--entrypoint=tcpdump",
        _TOOLS,
        *command[1:],
        "-w",
        f"/captures/{path.name}",
    )
    try:
        yield
    finally:
        _run("docker", "stop", "--signal=INT", "--time=5", name)


def _endpoints(stack: ExitStack, pair: Pair, name: str, inputs: Path, seconds: float) -> None:
    """Start the server, and wait until the client has ended."""
    common = [
        "--cap-add=NET_ADMIN",
        "--env=TESTCASE=transfer",
        "--env=SSLKEYLOGFILE=/logs/keys.log",
        f"--volume={_BIND.format(inputs / 'certs', '/certs')}",
    ]
    throttle = [] if pair.read_rate is None else [f"--device-read-bps={_disk(inputs)}:{pair.read_rate}"]
    server = [
        "docker",
        "run",
        "--rm",
        f"--name={name}-s",
        f"--network=container:{name}-server",
        "--env=ROLE=server",
        f"--volume={_BIND.format(inputs / 'www', '/www')}",
        f"--volume={inputs / 'server'}:/logs",
        *common,
        *throttle,
    ]
    log = stack.enter_context((inputs.parent / "server.log").open("wb"))
    process = subprocess.Popen([*server, f"bentpipe/{pair.server}"], stdout=log, stderr=log)
    stack.callback(process.wait, 20)
    stack.callback(
        lambda: subprocess.run(["docker", "stop", "--time=5", f"{name}-s"], capture_output=True, check=False)
    )
    time.sleep(_READY)
    client = [
        "docker",
        "run",
        "--rm",
        f"--name={name}-c",
        f"--network=container:{name}-client",
        "--env=ROLE=client",
        f"--env=REQUESTS=https://server4:443/{_FILE}",
        f"--volume={inputs / 'downloads'}:/downloads",
        f"--volume={inputs / 'client'}:/logs",
        *common,
        f"bentpipe/{pair.client}",
    ]
    try:
        done = subprocess.run(client, capture_output=True, timeout=seconds, check=False)
        (inputs.parent / "client.log").write_bytes(done.stdout + done.stderr)
    except subprocess.TimeoutExpired:
        subprocess.run(["docker", "rm", "--force", f"{name}-c"], capture_output=True, check=False)
        raise ProxiedError(f"the client had not ended after {seconds:.0f} s") from None
    for role in ("client", "server"):
        keys = inputs / role / "keys.log"
        if keys.is_file():
            shutil.copyfile(keys, inputs.parent / f"{role}.keys")
    received = inputs / "downloads" / _FILE
    if done.returncode or not received.is_file() or received.stat().st_size != pair.spec["size"]:
        raise ProxiedError(f"the client ended with {done.returncode} and without the whole file")


def _disk(path: Path) -> str:
    """The block device of a path."""
    return _run("df", "--output=source", str(path)).splitlines()[-1]
