"""Ends an endpoint that fills its root file system.

A root file system on a tmpfs (`runner.engine.layers`) has a limit in the kernel, and its size is known from one system
call. For other root file systems, the engine counts the files on demand, which takes a few milliseconds. So the
engine counts them often only while the free space of its disk shrinks fast.
"""

import threading
import time
from collections.abc import Callable

from runner.engine.containers import Engine
from runner.engine.layers import BoundedLayer
from runner.errors import LaneError
from runner.lanes.supervised import Watched

_LOOK_SECONDS = 0.1  # seconds between checks of a tmpfs
_FREE_LOOK_SECONDS = 0.02  # seconds between checks of the free space of the engine's disk
_EARLY = 8  # the container is killed when 1/8 of the limit is left, because it still writes until it is dead
_SUSPICIOUS = 4  # the container is measured when the free space has shrunk by more than 1/4 of the limit
_DEATH_SECONDS = 0.15  # seconds from a measurement to the container's last write


def watch_root(
    engine: Engine, watched: Watched, *, layer: BoundedLayer | None, limit: int, over: Callable[[], None]
) -> None:
    """Watch a started container in a thread, which ends with the container. When `layer` is full, `over` is called and
    the container is killed. Without a layer, this is done shortly before the container has written `limit` bytes."""
    arguments = (engine, watched, layer, limit, over)
    threading.Thread(target=_watch, args=arguments, name="root", daemon=True).start()


def _watch(engine: Engine, watched: Watched, layer: BoundedLayer | None, limit: int, over: Callable[[], None]) -> None:
    if layer is not None and not layer.is_used and not watched.ended:
        layer.release()
        layer = None
    try:
        is_over = _fills(watched, layer) if layer is not None else _grows(engine, watched, limit)
        if is_over and not watched.ended:
            over()
            engine.signal(watched.container, "SIGKILL")
    except LaneError:
        return  # the job notices an engine that fails


def _fills(watched: Watched, layer: BoundedLayer) -> bool:
    """Wait until the layer is full, or the container has ended. Returns whether it is full."""
    while not watched.ended:
        if layer.is_full:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _grows(engine: Engine, watched: Watched, limit: int) -> bool:
    """Wait until the container has written nearly `limit` bytes, or until it writes so fast that it would exceed this
    limit before it could be killed. Returns False when the container has ended before."""
    free, counted = engine.free_disk(), time.monotonic()
    while not watched.ended:
        time.sleep(_FREE_LOOK_SECONDS)
        now = engine.free_disk()
        shrunk = free is not None and now is not None and free - now > limit // _SUSPICIOUS
        if not shrunk and time.monotonic() - counted < engine.longest_look:
            continue
        free, size, began = now, engine.layer_size(watched.container), time.monotonic()
        soon = 0.0
        if shrunk:  # perhaps because of another container: measure how fast this container writes
            time.sleep(_FREE_LOOK_SECONDS / 2)
            size, before = engine.layer_size(watched.container), size
            soon = (size - before) / (time.monotonic() - began) * _DEATH_SECONDS
        counted = time.monotonic()
        if size + soon > limit - limit // _EARLY:
            return True
    return False
