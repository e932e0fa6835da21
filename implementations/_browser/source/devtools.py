"""Chromium's DevTools protocol over a pair of pipes: JSON messages, each ended by a zero byte.

https://chromedevtools.github.io/devtools-protocol/ lists methods and events.
"""

import contextlib
import fcntl
import json
import os
import subprocess
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_READ, _WRITE = 3, 4  # the browser's file descriptors for --remote-debugging-pipe
_ABOVE = 10  # the lowest file descriptor that can't collide with _READ and _WRITE
_BLOCK = 1 << 16


class BrowserError(Exception):
    """The browser ended, or refused a command."""


class Browser:
    """A running browser. Events that arrive before an answer are kept until `event` or `kept_events` returns them."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        to_browser, from_browser = os.pipe(), os.pipe()
        ours = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for end in (to_browser[1], from_browser[0])]
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for end in (to_browser[0], from_browser[1])]
        for end in (*to_browser, *from_browser):
            os.close(end)
        for end, number in zip(theirs, (_READ, _WRITE), strict=True):
            os.dup2(end, number)
            os.close(end)
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*command, "--remote-debugging-pipe"], pass_fds=(_READ, _WRITE), stderr=stderr
            )
        os.close(_READ)
        os.close(_WRITE)
        self._to, self._from = ours
        self._received = b""
        self._number = 0
        self._events: deque[Event] = deque()

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """Send a command and wait for its result. Raises BrowserError when it is refused."""
        number = self.send(method, session, **parameters)
        while (message := self._receive()).get("id") != number:
            self._events.append(message)
        if "error" in message:
            raise BrowserError(f"{method}: {message['error'].get('message')}")
        result: dict[str, Any] = message["result"]
        return result

    def send(self, method: str, session: str | None = None, **parameters: object) -> int:
        """Send a command without waiting. Returns its number."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        return self._number

    def event(self) -> Event:
        """The next event, or the answer to a command of `send`. Raises BrowserError when this command was refused."""
        event = self._events.popleft() if self._events else self._receive()
        if "error" in event:
            raise BrowserError(event["error"].get("message", ""))
        return event

    def kept_events(self) -> list[Event]:
        """The kept events, oldest first. Each event is returned once, here or by `event`."""
        events = list(self._events)
        self._events.clear()
        return events

    def close(self, *, seconds: float) -> None:
        """Request the browser to end, so that its logs are complete. Kill it after `seconds`."""
        with contextlib.suppress(OSError):  # the browser may have ended already
            self.send("Browser.close")
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self) -> Event:
        while b"\0" not in self._received:
            data = os.read(self._from, _BLOCK)
            if not data:
                raise BrowserError("the browser has ended")
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        event: Event = json.loads(message)
        return event
