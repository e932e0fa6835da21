"""Runs whose processes and containers are killed at random moments, and resumed with the same command until done.

After each kill: what was stored stays as it was, to the byte; containers and processes of the dead go by themselves;
the same command goes on. At the end every job has one result, and each of them is one that an undisturbed run has.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import docker

from runner.config.catalog import ROOT
from runner.engine.containers import LABEL_ROLE, LABEL_RUN
from runner.model.result import Outcome
from runner.store import RunFolder
from runner.validation.attack.processes import family
from runner.validation.attack.verdicts import Finding, Tally, Verdict

TARGETS = ("runner", "group", "judge", "holder", "simulator", "plumber", "endpoint")
_ORPHANS_S = 120.0
_RUN_S = 240.0  # in which a run without a further kill must end
_LATEST_KILL_S = 9.0  # after the start of the command
_POLL_S = 0.3


@dataclass(frozen=True, kw_only=True)
class _Kill:
    """One attack: which process, and when, seconds after the command's start."""

    number: int
    target: str
    moment: float


def attack_kills(
    tally: Tally, scratch: Path, *, seed: int, count: int, seconds: float, progress: Callable[[Tally], None]
) -> None:
    """Kill until `count` were tried, those of earlier calls included, or `seconds` have passed."""
    began = time.monotonic()
    while tally.tried < count and time.monotonic() - began < seconds:
        rng = Random(f"{seed}/{tally.tried}")
        kill = _Kill(
            number=tally.tried, target=TARGETS[tally.tried % len(TARGETS)], moment=rng.uniform(0.3, _LATEST_KILL_S)
        )
        started = time.monotonic()
        for verdict, what, text in _attack(tally, scratch / "kills", kill):
            attack = f"kills --seed {seed}, {kill.number}: {kill.target} after {kill.moment:.1f} s"
            tally.add(Finding(attack=attack, verdict=verdict, what=what, text=text))
        tally.tried += 1
        tally.seconds += time.monotonic() - started
        progress(tally)


def _command(folder: Path) -> list[str]:
    pairs = ("--server", "quinn,quic-go", "--client", "quinn,quic-go", "--case", "handshake")
    return [sys.executable, "-m", "runner", "run", "--run", str(folder), *pairs, "--seed", "1", "--yes"]


def _attack(tally: Tally, folder: Path, kill: _Kill) -> Iterator[tuple[Verdict, str, str]]:
    """One kill; then the same command again until it ends by itself."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    process = _start(folder)
    time.sleep(kill.moment)
    hit = process.poll() is None and _strike(kill.target, process.pid, folder.name)
    tally.of_kind(f"{kill.target}{'' if hit else ' (nothing to kill)'}")
    alone = kill.target in ("runner", "group")
    if alone:
        process.wait()
        before = _stored(folder)
        began = time.monotonic()
        left = _wait_for_none(folder.name)
        tally.peak("s until nothing was left", time.monotonic() - began)
        if left:
            yield Verdict.ESCAPED, "orphan", f"after {_ORPHANS_S:.0f} s: {', '.join(left)}"
        process = _start(folder)
    else:
        before = {}
    code, printed = _end(process)
    if code is None:
        yield Verdict.LOST, "time", f"the run did not end in {_RUN_S:.0f} s\n{printed}"
    elif code != 0:
        yield Verdict.LOST, "resume", f"the command ended with {code}\n{printed}"
    if code != 0:
        code, printed = _end(_start(folder))
        if code != 0:
            yield Verdict.LOST, "resume", f"the command again ended with {code}\n{printed}"
    yield from _compared(folder, before)
    if left := _wait_for_none(folder.name):
        yield Verdict.ESCAPED, "orphan", f"behind the run: {', '.join(left)}"


def _start(folder: Path) -> "subprocess.Popen[bytes]":
    printed = folder.with_name(f"{folder.name}.txt").open("wb")
    try:
        return subprocess.Popen(
            _command(folder), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, start_new_session=True
        )
    finally:
        printed.close()


def _end(process: "subprocess.Popen[bytes]") -> tuple[int | None, str]:
    """Exit code, None when it had to be killed, and the end of what it printed."""
    folder = Path(_folder_of(process))
    try:
        code: int | None = process.wait(_RUN_S)
    except subprocess.TimeoutExpired:
        code = None
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return code, folder.with_name(f"{folder.name}.txt").read_text(errors="replace")[-1500:]


def _folder_of(process: "subprocess.Popen[bytes]") -> str:
    arguments = [str(one) for one in process.args]  # type: ignore[union-attr]
    return arguments[arguments.index("--run") + 1]


def _strike(target: str, pid: int, run: str) -> bool:
    """SIGKILL; False when there is nothing to kill yet."""
    if target == "runner":
        os.kill(pid, signal.SIGKILL)
        return True
    if target == "group":
        os.killpg(pid, signal.SIGKILL)
        return True
    if target == "judge":
        judges = [one for one in family(pid) if b"runner.judge.worker" in _command_line(one)]
        for one in judges:
            os.kill(one, signal.SIGKILL)
        return bool(judges)
    return _strike_container(target, run)


def _strike_container(target: str, run: str) -> bool:
    roles = {"holder": "-holder", "simulator": "link", "plumber": "plumber", "endpoint": "client"}
    client = docker.from_env()
    try:
        for container in client.api.containers(filters={"label": f"{LABEL_RUN}={run}"}):
            role = container["Labels"][LABEL_ROLE]
            if role.endswith(roles[target]) or (target == "simulator" and role.startswith("sim")):
                pid = client.api.inspect_container(container["Id"])["State"]["Pid"]
                if pid > 1:
                    os.kill(pid, signal.SIGKILL)
                    return True
    except (docker.errors.DockerException, ProcessLookupError):
        return False
    finally:
        client.close()
    return False


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _left(run: str) -> list[str]:
    """Containers and volumes of the run, and judges that no runner has."""
    client = docker.from_env()
    try:
        containers = client.api.containers(all=True, filters={"label": f"{LABEL_RUN}={run}"})
        volumes = client.api.volumes(filters={"label": f"{LABEL_RUN}={run}"})["Volumes"] or []
        return [one["Names"][0] for one in containers] + [one["Name"] for one in volumes]
    finally:
        client.close()


def _wait_for_none(run: str) -> list[str]:
    end = time.monotonic() + _ORPHANS_S
    while (left := _left(run)) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return left


def _stored(folder: Path) -> dict[str, str]:
    """Digest of each result by its job's folder."""
    return {
        str(path.parent.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.glob("*_*/*/*/result.json")
    }


def _compared(folder: Path, before: dict[str, str]) -> Iterator[tuple[Verdict, str, str]]:
    after = _stored(folder)
    for place, digest in before.items():
        if place not in after:
            yield Verdict.LOST, "result", f"{place} is gone"
        elif after[place] != digest:
            yield Verdict.LOST, "result", f"{place} was run again, or changed"
    run = RunFolder.open(folder)
    results = run.results()
    for job in run.run.order:
        if job not in results:
            yield Verdict.LOST, "result", f"{job} has none"
        elif results[job].outcome is not Outcome.SUCCEEDED:
            why = results[job].findings[0]
            yield Verdict.LOST, "outcome", f"{job}: {results[job].outcome}, {why.code}: {why.actual}"
    if extra := [str(path) for path in folder.glob(".partial/*")]:
        yield Verdict.LOST, "litter", ", ".join(extra)
