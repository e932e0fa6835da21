"""The same work for many things, on all cores."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_CHUNKS = 8  # per process: the last one to end should not be long alone

_work: Callable[[Any], Any] | None = None


def every(things: Sequence[T], work: Callable[[T], R], *, least: int) -> list[R]:
    """`work` of each thing, in their order. Below `least` things, or with one core, in this process.

    Processes are forked, so that `work` may be any function and sees what is in memory; what it returns is pickled.
    """
    cores = len(os.sched_getaffinity(0))
    if cores < 2 or len(things) < least:
        return [work(thing) for thing in things]
    global _work  # noqa: PLW0603 - the one way to hand a function to forked processes without pickling it
    _work = work
    try:
        with multiprocessing.get_context("fork").Pool(cores) as pool:
            size = max(1, len(things) // (cores * _CHUNKS))
            return pool.map(_call, things, chunksize=size)
    finally:
        _work = None


def _call(thing: Any) -> Any:
    assert _work is not None  # set before the fork
    return _work(thing)
