"""Waits for events. A fixed pause would be too short on a slow host, and too long on a fast one."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], bool], seconds: float = 180.0, *, pause: float = 0.1) -> None:
    """Return when `holds` returns True. Raises AssertionError after `seconds`. `pause`: seconds between two calls."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)
