"""Ends an endpoint that writes too much to its root file system, which has no quota on most engines.

The engine counts a container's files when it is asked, which takes it a few milliseconds. So it is asked often only
while the free space of its disk shrinks fast.
"""

import threading
import time
from collections.abc import Callable

from runner.engine.containers import Engine
from runner.errors import LaneError
from runner.lanes.supervised import Watched

_LOOK_SECONDS = 0.5
_LONGEST_SECONDS = 5.0  # between two questions to the engine
_SUSPICIOUS = 4  # a limit's part by which the free space has shrunk


def watch_root(engine: Engine, watched: Watched, *, limit: int, over: Callable[[], None]) -> None:
    """Watch a container that has been started, in a thread that ends with it. Beyond `limit` bytes `over` is called
    and the container is killed."""
    threading.Thread(target=_watch, args=(engine, watched, limit, over), name="root", daemon=True).start()


def _watch(engine: Engine, watched: Watched, limit: int, over: Callable[[], None]) -> None:
    free, asked = engine.free_disk(), time.monotonic()
    try:
        while not watched.ended:
            time.sleep(_LOOK_SECONDS)
            now = engine.free_disk()
            shrunk = free is not None and now is not None and free - now > limit // _SUSPICIOUS
            if not shrunk and time.monotonic() - asked < _LONGEST_SECONDS:
                continue
            asked = time.monotonic()
            if engine.layer_size(watched.container) > limit and not watched.ended:
                over()
                engine.signal(watched.container, "SIGKILL")
                return
    except LaneError:
        return  # the job notices an engine that fails
