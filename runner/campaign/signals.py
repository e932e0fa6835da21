"""Ctrl-C and SIGTERM during a campaign."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from runner.campaign.campaign import Campaign


@contextmanager
def stopping(*works: Campaign) -> Iterator[None]:
    """Inside the context, the first Ctrl-C or SIGTERM ends the campaigns cleanly. A second Ctrl-C raises
    KeyboardInterrupt."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature is Python's
        # First of all, because a second signal must not call this function again while it holds a campaign's lock.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for work in works:
            work.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
