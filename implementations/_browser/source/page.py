"""Chromium loads the page that REQUESTS names, once, with an empty cache, and says how long that took.

Times are those of the Navigation and Paint Timing APIs of the W3C. `/logs/workload.json` is written whatever happens
within TIMEOUT seconds; exit code 0 when the load event came and every object with it, else 1.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from devtools import Browser, BrowserError, Event

BINARY = "/usr/lib/chromium/chromium-headless-shell"
RESULT = Path("/logs/workload.json")
BROWSER_LOG = Path("/logs/chromium.log")  # mostly about the desktop that it misses
_CLOSE_SECONDS = 2.0
_LOOK = 0.1  # s between looks
_ERRORS_TOLD = 5
_SETTLE = 0.3  # s after the load event, for the paint that may come after it
_TIMES = """
JSON.stringify((() => {
    const page = performance.getEntriesByType("navigation")[0];
    const paint = performance.getEntriesByType("paint").find((one) => one.name == "first-contentful-paint");
    return {
        ready: document.readyState,
        connectEnd: page.connectEnd,
        responseStart: page.responseStart,
        firstContentfulPaint: paint ? paint.startTime : null,
        domContentLoaded: page.domContentLoadedEventStart,
        load: page.loadEventStart,
        protocol: page.nextHopProtocol,
    };
})())
"""


def command(host: str, port: int) -> list[str]:
    """The command line of a browser that asks nobody but the origin."""
    protocol = os.environ["PROTOCOL"]
    key_log = os.environ.get("SSLKEYLOGFILE")
    return [
        BINARY,
        *([f"--origin-to-force-quic-on={host}:{port}"] if protocol == "h3" else ["--disable-quic"]),
        *(["--disable-http2"] if protocol == "http/1.1" else []),
        *([f"--ssl-key-log-file={key_log}"] if key_log else []),
        "--user-data-dir=/tmp/profile",
        "--no-sandbox",  # its sandbox needs user namespaces, which an endpoint's container doesn't have
        "--no-zygote",
        "--disable-gpu",
        "--disable-dev-shm-usage",  # a container's /dev/shm of 64 MiB is too small for a process per origin
        "--disable-background-networking",
        "--disable-component-update",
        "--window-size=1280,1024",
        *os.environ.get("CLIENT_PARAMS", "").split(),
        "about:blank",
    ]


class Objects:
    """What the page asked for. From events of the network, for Resource Timing hides what other origins answered.

    Times in ms since the first request, sizes in bytes with headers, as they came.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[str, object]] = {}
        self._first: float | None = None

    def add(self, event: Event) -> None:
        """Take one event in; others than those of requests change nothing."""
        about = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self._found[about["requestId"]] = {"name": about["request"]["url"], "start": self._time(about)}
            case "Network.responseReceived":
                answer = about["response"]
                self._of(about).update(status=answer["status"], protocol=answer["protocol"])
            case "Network.loadingFinished":
                self._of(about).update(size=about["encodedDataLength"], end=self._time(about))
            case "Network.loadingFailed":
                self._of(about).update(error=about["errorText"])

    def all(self) -> list[dict[str, object]]:
        """Every object, in the order of requests."""
        return list(self._found.values())

    def _of(self, about: Event) -> dict[str, object]:
        return self._found.setdefault(about["requestId"], {})

    def _time(self, about: Event) -> float:
        now: float = about["timestamp"]
        self._first = now if self._first is None else self._first
        return round(1e3 * (now - self._first), 3)


def load(browser: Browser, url: str, deadline: float) -> dict[str, object]:
    """Navigate, wait for the load event, read the times; the last ones that could be read when it doesn't come."""
    times, objects = _times(browser, url, deadline), Objects()
    for event in browser.kept_events():
        objects.add(event)
    return times | {"objects": objects.all()}


def _times(browser: Browser, url: str, deadline: float) -> dict[str, object]:
    targets = browser.call("Target.getTargets")["targetInfos"]
    page = next(target["targetId"] for target in targets if target["type"] == "page")
    session = browser.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
    browser.call("Network.enable", session)
    browser.call("Network.clearBrowserCache", session)
    if secret := os.environ.get("SECRET"):
        browser.call("Network.setExtraHTTPHeaders", session, headers={"Authorization": f"Bearer {secret}"})
    browser.call("Page.enable", session)
    browser.send("Page.navigate", session, url=url)
    times: dict[str, object] = {}
    ended = 0.0
    while time.monotonic() < deadline:
        time.sleep(_LOOK)
        found = browser.call("Runtime.evaluate", session, expression=_TIMES)
        value = found.get("result", {}).get("value")
        now = json.loads(value) if value else {}
        if now.get("responseStart"):
            times = now
        if now.get("load"):
            ended = ended or time.monotonic()
            if now.get("firstContentfulPaint") or time.monotonic() - ended > _SETTLE:
                return times
    return times


def _silent(*_: object) -> None:
    raise BrowserError("the browser answers no more")


def main() -> int:
    """Load the page; the exit code."""
    url = os.environ["REQUESTS"].split()[0]
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    browser = Browser(command(parts.hostname or "", port), BROWSER_LOG)
    seconds = float(os.environ["TIMEOUT"])
    signal.signal(signal.SIGALRM, _silent)
    signal.setitimer(signal.ITIMER_REAL, seconds + _CLOSE_SECONDS)
    times: dict[str, object] = {}
    try:
        times = load(browser, url, time.monotonic() + seconds)
    except BrowserError as error:
        print(error, file=sys.stderr)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        RESULT.write_text(json.dumps(times))
        browser.close(seconds=_CLOSE_SECONDS)
    found = times.get("objects")
    objects: list[dict[str, object]] = found if isinstance(found, list) else []
    good = sum(one.get("status") == 200 and "end" in one for one in objects)
    wanted = int(os.environ["OBJECTS"])
    print(f"{good} of {wanted} objects, load event at {times.get('load')} ms")
    for failed in [one for one in objects if "error" in one][:_ERRORS_TOLD]:
        print(f"{failed.get('name')}: {failed['error']}", file=sys.stderr)
    return 0 if times.get("load") and good == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
