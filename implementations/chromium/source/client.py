"""The client of Chromium: the browser's download manager fetches every URL of REQUESTS over HTTP/3, HTTP/2 or HTTP/1.1.

Exit code 0 when every file has arrived completely, 1 otherwise.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from devtools import Browser, BrowserError, Event

BINARY = "/usr/lib/chromium/chromium-headless-shell"
DOWNLOADS = Path("/downloads")
NET_LOG = Path("/logs/netlog.json")
BROWSER_LOG = Path("/logs/chromium.log")  # mostly messages about the missing desktop
_NET_LOG_MIB = 32
_CLOSE_SECONDS = 5.0
_CLICK_ALL = """
for (const url of %s) {
    const link = document.createElement("a");
    link.href = url;
    link.download = "";
    link.click();
}
"""


def command(origins: set[str]) -> list[str]:
    """The command line of a browser that uses only the protocol of TESTCASE with `origins` (host:port)."""
    key_log = os.environ.get("SSLKEYLOGFILE")
    case = os.environ["TESTCASE"]
    return [
        BINARY,
        *(["--disable-quic"] if case in ("h1", "h2") else [f"--origin-to-force-quic-on={','.join(sorted(origins))}"]),
        *(["--disable-http2"] if case == "h1" else []),
        *([f"--ssl-key-log-file={key_log}"] if key_log else []),
        f"--log-net-log={NET_LOG}",
        f"--net-log-max-size-mb={_NET_LOG_MIB}",
        "--user-data-dir=/tmp/profile",
        "--no-sandbox",  # its sandbox needs user namespaces, which an endpoint's container doesn't have
        "--no-zygote",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        *os.environ.get("CLIENT_PARAMS", "").split(),
        "about:blank",
    ]


class Downloads:
    """Downloads of all files at once, by a page of the server's own origin.

    Chromium saves the target of a link with the attribute `download`, whatever its type, when the page has the same
    origin. So this class answers the request for the page `/` itself, inside the browser.
    """

    def __init__(self, browser: Browser, urls: list[str]) -> None:
        self._browser = browser
        self._urls = urls
        self._names: dict[str, str] = {}
        self.failures: list[str] = []

    def run(self) -> None:
        """Download all files. `failures` then has the names of the files that did not arrive."""
        browser = self._browser
        browser.call(
            "Browser.setDownloadBehavior", behavior="allowAndName", downloadPath=str(DOWNLOADS), eventsEnabled=True
        )
        targets = browser.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        session = browser.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        root = urlsplit(self._urls[0])._replace(path="/").geturl().replace(":443/", "/")
        browser.call("Fetch.enable", session, patterns=[{"urlPattern": root}])
        browser.call("Page.enable", session)
        browser.send("Page.navigate", session, url=root)
        left = len(self._urls)
        while left:
            left -= self._handle(browser.event(), session)

    def _handle(self, event: Event, session: str) -> int:
        """Handle an event. Returns the number of downloads that it ended."""
        about = event.get("params", {})
        match event.get("method"):
            case "Fetch.requestPaused":
                page = {"responseCode": 200, "responseHeaders": [{"name": "content-type", "value": "text/html"}]}
                self._browser.send("Fetch.fulfillRequest", session, requestId=about["requestId"], **page)
            case "Page.loadEventFired":
                self._browser.send("Runtime.evaluate", session, expression=_CLICK_ALL % json.dumps(self._urls))
            case "Browser.downloadWillBegin":
                self._names[about["guid"]] = Path(urlsplit(about["url"]).path).name
            case "Browser.downloadProgress" if about["state"] != "inProgress":
                self._end(about["guid"], about["state"])
                return 1
        return 0

    def _end(self, guid: str, state: str) -> None:
        name = self._names[guid]
        if state == "completed":
            (DOWNLOADS / guid).rename(DOWNLOADS / name)
        else:
            self.failures.append(name)


def main() -> int:
    """Download the files of REQUESTS. Returns the exit code."""
    urls = os.environ.get("REQUESTS", "").split()
    if not urls:
        print("REQUESTS is empty", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    browser = Browser(command({f"{url.hostname}:{url.port or 443}" for url in map(urlsplit, urls)}), BROWSER_LOG)
    downloads = Downloads(browser, urls)
    try:
        downloads.run()
    except BrowserError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("terminated before all files had arrived", file=sys.stderr)
        return 1
    finally:
        browser.close(seconds=_CLOSE_SECONDS)
        subprocess.run(["gzip", "-1f", NET_LOG], check=False)  # 7 MB for a download of 10 MiB, 0.5 MB compressed
    for name in downloads.failures:
        print(f"{name} did not arrive: {NET_LOG}.gz has the reason", file=sys.stderr)
    return 1 if downloads.failures else 0


if __name__ == "__main__":
    sys.exit(main())
