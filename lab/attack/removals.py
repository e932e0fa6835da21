"""Removes containers, eight at once as the end of a run does, on a Docker Engine of its own and with all cores busy.

After each batch the engine must answer `docker info`. In Docker Engine 20.10, two containers that end at the same time
can deadlock in the engine's network code (moby issue 46661), and then the engine answers nobody.
"""

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count as numbers
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException

from lab.attack.verdicts import Finding, Tally, Verdict
from lab.testbed.hosts import Host, free_number, lacking
from runner.engine.containers import LABEL_LANES, LABEL_OWNER, Engine
from runner.engine.engine import Owner, remove_own
from runner.errors import LaneError, SetupError
from runner.places.supervised import TOOLS, client_holder

_BATCH = 8  # containers
_ANSWER_S = 60  # the longest time in which the engine must answer


def attack_removals(
    tally: Tally, scratch: Path, *, count: int, seconds: float, progress: Callable[[Tally], None]
) -> None:
    """Remove `count` containers, including those of earlier calls, or as many as `seconds` allow. Raises SetupError
    when no own engine can be made."""
    if reason := lacking():
        raise SetupError(f"Removals need a Docker Engine of their own, which can't be made here: {reason}.")
    scratch.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True))
        host = Host(Path(folder), free_number())
        stack.callback(host.close)
        host.open()
        host.load(TOOLS)
        for _ in range(cpu_count() or 1):
            busy = get_context("fork").Process(target=_burn, daemon=True)
            busy.start()
            stack.callback(busy.kill)
        url = f"unix://{host.socket}"
        client = docker.DockerClient(url, version="1.41", timeout=_ANSWER_S)
        labels = {LABEL_OWNER: str(Owner.current()), LABEL_LANES: "removals"}
        engine = Engine(client, labels, url=url)
        pool = stack.enter_context(ThreadPoolExecutor(_BATCH))
        for batch in numbers():
            if tally.tried >= count or time.monotonic() - began > seconds:
                break
            start = time.monotonic()
            try:
                list(pool.map(lambda number, batch=batch: _start(engine, f"{batch}-{number}"), range(_BATCH)))
                tally.tried += remove_own(engine, labels)
                client.info()
            except (LaneError, DockerException, RequestException) as error:
                tally.tried += 1
                attack = f"removals, after {tally.tried - 1}"
                tally.add(Finding(attack=attack, verdict=Verdict.LOST, what="hang", text=str(error)))
                break
            tally.peak("s for a batch", time.monotonic() - start)
            tally.seconds += time.monotonic() - start
            progress(tally)


def _start(engine: Engine, name: str) -> None:
    engine.start(engine.create(name, client_holder(())))


def _burn() -> None:
    while True:
        pass
