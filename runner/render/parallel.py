"""Applies a function to many items on all cores."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]  # called with the number of finished items and the number of all items
_CHUNKS = 32  # per process; small chunks let all processes end at nearly the same time

_work: Callable[[Any], Any] | None = None


def every(things: Sequence[T], work: Callable[[T], R], *, least: int, progress: Progress | None = None) -> list[R]:
    """Apply `work` to each item and return the results in the order of the items.

    With fewer than `least` items, or with one core, this process does all the work. Otherwise it forks one process for
    each core. Because the processes are forked, `work` may be any function, and it can read this process's memory. Its
    return value is pickled. Ctrl-C ends all these processes.
    """
    cores = len(os.sched_getaffinity(0))
    if cores < 2 or len(things) < least:
        return list(_counted(map(work, things), len(things), progress))
    global _work  # noqa: PLW0603 - a forked process inherits it, so the function needs no pickling
    _work = work
    gc.freeze()  # garbage collection writes to all objects, so each forked process would copy their memory pages
    try:
        with multiprocessing.get_context("fork").Pool(cores, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
            size = max(1, len(things) // (cores * _CHUNKS))
            return list(_counted(pool.imap(_call, things, chunksize=size), len(things), progress))
    finally:
        _work = None
        gc.unfreeze()


def _counted(results: Iterable[R], of: int, progress: Progress | None) -> Iterator[R]:
    for number, result in enumerate(results, start=1):
        if progress is not None:
            progress(number, of)
        yield result


def _call(thing: Any) -> Any:
    assert _work is not None  # set before the fork
    return _work(thing)
