"""Hostile remote hosts: an SSH server whose Docker Engine lies, floods, delays or breaks connections.

Each trial runs in its own process, which connects and makes calls like a run over a real link. A trial holds when each
call ends in time with an answer or with a BentpipeError, and when memory and spooled files stay bounded. The time-outs
of the product are shortened, so that a trial takes seconds.
"""

import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from lab.attack import hostile_host
from lab.attack.hostile_host import HostileHost
from lab.attack.processes import resident
from lab.attack.verdicts import Finding, Tally, Verdict
from runner.engine import client as engine_client
from runner.engine import containers
from runner.engine.containers import ContainerSpec
from runner.errors import BentpipeError
from runner.model.link import RemoteHost
from runner.places.links import hosts
from runner.places.links import hosts as remote_engine
from runner.places.links.hosts import RemoteEngine, SshConnection
from runner.units import MIB

_WAIT_S = 3.0  # the product's time-outs in trials
_LONGEST_CALL_S = 30.0
_LONGEST_S = 180.0  # the longest duration of a trial, which makes a dozen calls
_MOST_MEMORY = 400 * MIB
_ARCHIVE = 16 * MIB  # the limit of a folder's archive in trials


def behaviours() -> list[str]:
    """All behaviours: those of SSH, of its sessions, of the engine's HTTP, and of the engine's answers."""
    attacks = [f"ssh: {behaviour}" for behaviour in hostile_host.SSH] + [
        f"session: {behaviour}" for behaviour in hostile_host.SESSION
    ]
    attacks += [f"http: {behaviour}" for behaviour in hostile_host.HTTP]
    attacks += [f"answer: {behaviour}" for behaviour in hostile_host.ODD]
    return [*attacks, "archive: endless", "archive: sparse", "archive: no tar", "log: endless", "log: long frame"]


def attack_hosts(tally: Tally, *, only: str, progress: Callable[[Tally], None]) -> None:
    """Try each behaviour once."""
    for behaviour in behaviours():
        if only not in behaviour:
            continue
        began = time.monotonic()
        for verdict, kind, text in _trial(tally, behaviour):
            tally.add(Finding(attack=f'hosts --only "{behaviour}"', verdict=verdict, what=kind, text=text))
        tally.tried += 1
        tally.of_kind(behaviour)
        tally.seconds += time.monotonic() - began
        progress(tally)


def _trial(tally: Tally, behaviour: str) -> Iterator[tuple[Verdict, str, str]]:
    server = HostileHost(behaviour)
    with tempfile.TemporaryDirectory() as scratch:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _child(writing, server, Path(scratch))
        os.close(writing)
        began, peak, spooled = time.monotonic(), 0, 0
        ended = False
        while not ended and time.monotonic() - began < _LONGEST_S and peak < 2 * _MOST_MEMORY:
            ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            peak = max(peak, resident(pid))
            for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
                with suppress(OSError):
                    if str(descriptor.readlink()).startswith(scratch):
                        spooled = max(spooled, descriptor.stat().st_blocks * 512)
            time.sleep(0.05)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            yield Verdict.LOST, "memory" if peak >= 2 * _MOST_MEMORY else "time", f"{peak / MIB:.0f} MiB, not ended"
        with os.fdopen(reading) as file:
            text = file.read()
    server.close()
    tally.peak("seconds of a trial", time.monotonic() - began)
    tally.peak("memory, MiB", peak / MIB)
    tally.peak("spooled, MiB", spooled / MIB)
    if peak > _MOST_MEMORY and ended:
        yield Verdict.LOST, "memory", f"{peak / MIB:.0f} MiB"
    if spooled > 2 * _ARCHIVE:
        yield Verdict.LOST, "disk", f"{spooled / MIB:.0f} MiB"
    if text:
        yield Verdict.LOST, "traceback", text
    elif ended and "wrong key" in behaviour and server.logged_in:
        yield Verdict.ESCAPED, "login", "a host with another key was logged in to"


def _child(report: int, server: HostileHost, scratch: Path) -> None:
    """Make every call, and write tracebacks of exceptions that are not a BentpipeError."""
    failures: list[str] = []
    tempfile.tempdir = str(scratch)
    hosts.CONNECT_SECONDS = hosts._CHANNEL_SECONDS = remote_engine._PATIENCE_SECONDS = _WAIT_S
    engine_client.LONGEST_ANSWER = _WAIT_S
    containers._CALL_SECONDS = int(_WAIT_S)
    remote_engine._CALL_SECONDS, remote_engine.LARGEST_ARCHIVE = int(_WAIT_S), _ARCHIVE
    try:
        for call in _calls(server.described(scratch)):
            began = time.monotonic()
            try:
                call()
            except BentpipeError:
                pass
            except BaseException:
                failures.append(traceback.format_exc())
            if (took := time.monotonic() - began) > _LONGEST_CALL_S:
                failures.append(f"a call took {took:.0f} s")
    finally:
        os.write(report, "\n".join(failures)[-60_000:].encode())
        os._exit(0)


def _calls(host: RemoteHost) -> Iterator[Callable[[], object]]:
    connection = SshConnection(host)
    yield connection.own_address
    yield connection.connect
    yield connection.close
    opened: list[RemoteEngine] = []
    yield lambda: opened.append(RemoteEngine.open(host, {}))
    if not opened:
        return
    engine = opened[0]
    spec = ContainerSpec(image="x", role="client")
    yield lambda: engine.image_id("x")
    yield lambda: engine.image_config("x")
    yield lambda: engine.create("x", spec)
    yield lambda: engine.state("x")
    yield lambda: engine.usage("x")
    yield lambda: engine.printed("x")
    yield lambda: engine.execute("x", ["true"])
    yield lambda: sum(len(block) for block in engine.archive("x", "/logs"))
    yield engine.labelled_containers
    yield engine.labelled_volumes
    yield engine.close
