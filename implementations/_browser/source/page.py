"""Loads the page of REQUESTS in Chromium once, with an empty cache, and measures the load.

Times are those of the Navigation and Paint Timing APIs of the W3C. `/logs/workload.json` is always written, also when
the page is not complete after TIMEOUT seconds. Exit code 0 when the load event happened and every object arrived, 1
otherwise.
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
BROWSER_LOG = Path("/logs/chromium.log")  # mostly messages about the missing desktop
_CLOSE_SECONDS = 2.0
_LOOK = 0.1  # s between two readings of the times
_SHOWN_ERRORS = 5
_SETTLE = 0.3  # s after the load event: the first paint may come later
_TIMES = """
JSON.stringify((() => {
    const page = performance.getEntriesByType("navigation")[0];
    const paint = performance.getEntriesByType("paint").find((entry) => entry.name == "first-contentful-paint");
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
    """The command line of a browser that sends requests only to the origin."""
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
    """The objects that the page requested, from network events: Resource Timing hides the responses of other origins.

    Times are in ms since the first request. Sizes are in bytes on the network, headers included.
    """

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, object]] = {}
        self._first: float | None = None

    def add(self, event: Event) -> None:
        """Use one event. Events that are not about requests are ignored."""
        about = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self._objects[about["requestId"]] = {"name": about["request"]["url"], "start": self._time(about)}
            case "Network.responseReceived":
                answer = about["response"]
                self._of(about).update(status=answer["status"], protocol=answer["protocol"])
            case "Network.loadingFinished":
                self._of(about).update(size=about["encodedDataLength"], end=self._time(about))
            case "Network.loadingFailed":
                self._of(about).update(error=about["errorText"])

    def all(self) -> list[dict[str, object]]:
        """All objects, in the order of their requests."""
        return list(self._objects.values())

    def _of(self, about: Event) -> dict[str, object]:
        return self._objects.setdefault(about["requestId"], {})

    def _time(self, about: Event) -> float:
        now: float = about["timestamp"]
        self._first = now if self._first is None else self._first
        return round(1e3 * (now - self._first), 3)


def load(browser: Browser, url: str, deadline: float) -> dict[str, object]:
    """Navigate, wait for the load event, and read the times. Without a load event, the times of the last reading are
    returned."""
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
        reading = browser.call("Runtime.evaluate", session, expression=_TIMES)
        value = reading.get("result", {}).get("value")
        now = json.loads(value) if value else {}
        if now.get("responseStart"):
            times = now
        if now.get("load"):
            ended = ended or time.monotonic()
            if now.get("firstContentfulPaint") or time.monotonic() - ended > _SETTLE:
                return times
    return times


def _silent(*_: object) -> None:
    raise BrowserError("the browser no longer answers")


def main() -> int:
    """Load the page. Returns the exit code."""
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
    listed = times.get("objects")
    objects: list[dict[str, object]] = listed if isinstance(listed, list) else []
    good = sum(entry.get("status") == 200 and "end" in entry for entry in objects)
    wanted = int(os.environ["OBJECTS"])
    print(f"{good} of {wanted} objects, load event at {times.get('load')} ms")
    for failed in [entry for entry in objects if "error" in entry][:_SHOWN_ERRORS]:
        print(f"{failed.get('name')}: {failed['error']}", file=sys.stderr)
    return 0 if times.get("load") and good == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
