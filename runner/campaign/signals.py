"""Ctrl-C and SIGTERM during a campaign."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from runner.campaign.campaign import Campaign


@contextmanager
def stopping(*works: Campaign) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the campaigns cleanly; a second Ctrl-C ends the program immediately."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature is Python's
        for work in works:
            work.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
