"""The same work for many things, on all cores."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]  # how many are done, of how many
_CHUNKS = 32  # per process: the last one to end should not be long alone

_work: Callable[[Any], Any] | None = None


def every(things: Sequence[T], work: Callable[[T], R], *, least: int, progress: Progress | None = None) -> list[R]:
    """`work` applied to each item, in order. With fewer than `least` items, or with one core, in this process.

    Processes are forked, so `work` may be any function and sees this process's memory; its return value is
    pickled. Ctrl-C ends the processes together with this one.
    """
    cores = len(os.sched_getaffinity(0))
    if cores < 2 or len(things) < least:
        return list(_counted(map(work, things), len(things), progress))
    global _work  # noqa: PLW0603 - the one way to hand a function to forked processes without pickling it
    _work = work
    gc.freeze()  # what is in memory stays: no collection walks through it again, and no process copies its pages
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
