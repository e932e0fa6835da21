"""The HTTP server of `./bentpipe serve`. It sends the pages of a site, and the files of jobs, which images wrote.

A job's file is never sent as a page. It is sent as text or as a download, in a sandbox, whatever its name is. A
symbolic link is followed only when it leads from a job's folder in the site to the same file of the stored job. A
request with another server's name in `Host` is refused. Otherwise another site could read this site by pointing its
own name to this address (DNS rebinding).
"""

import http.server
import ipaddress
import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path, PurePosixPath

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FILE_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
_COMPRESSED_QLOG = ("qlog.zst",)
_TEXT = (".log", ".json", ".qlog", ".sqlog", ".txt", *_COMPRESSED_QLOG)  # files of jobs that browsers show as text
_JOB_PARTS = 4  # <run>/<server>_<client>/<case>/<iteration>
_LINKS = "artifacts"
_QVIS = "https://qvis.quictools.info"  # pages link to qvis, which may load qlogs from here (CORS, Fetch standard §3.2)


class SiteServer(http.server.ThreadingHTTPServer):
    """Serves the site in the folder `site`. `names`: further host names that requests may use; addresses and
    `localhost` are always allowed."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], site: Path, names: Iterable[str] = ()) -> None:
        self.site = site.resolve()
        self.names = {name.lower() for name in (*names, "localhost", address[0], socket.gethostname())}
        super().__init__(address, _Handler)


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: SiteServer
    timeout = 60  # seconds for a request to arrive
    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
        ".js": "text/javascript; charset=utf-8",
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
        ".xml": "application/atom+xml",
    }

    def __init__(self, request: socket.socket, address: tuple[str, int], server: SiteServer) -> None:
        super().__init__(request, address, server, directory=str(server.site))

    def handle(self) -> None:
        """Answer the requests of one connection. A client may leave at any time."""
        with suppress(ConnectionError):
            super().handle()

    def send_head(self):  # type: ignore[no-untyped-def]
        """Open the requested file and send its headers, or an error."""
        if not _is_own(self.headers.get("Host", ""), self.server.names):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "This server does not have that name: see `serve --name`")
            return None
        if not _is_served(self.server.site, Path(self.translate_path(self.path))):
            self.send_error(HTTPStatus.NOT_FOUND, "There is no such file")
            return None
        return super().send_head()

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        """The content type. For a job's file it is text or binary data, so that a browser never runs the file."""
        if self._of_job() is None:
            return super().guess_type(path)
        return "text/plain; charset=utf-8" if str(path).endswith(_TEXT) else "application/octet-stream"

    def end_headers(self) -> None:
        inside = self._of_job()
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "cross-origin" if self._is_qlog() else "same-origin")
        self.send_header("Content-Security-Policy", _PAGE_POLICY if inside is None else _FILE_POLICY)
        if inside is not None and inside.suffix and not inside.name.endswith(_TEXT):
            self.send_header("Content-Disposition", "attachment")
        if self._is_qlog():
            self.send_header("Access-Control-Allow-Origin", _QVIS)
        if self._is_unpacked_by_the_browser():
            self.send_header("Content-Encoding", "zstd")  # RFC 8878: the file is already stored in this encoding
            self.send_header("Vary", "Accept-Encoding")
        super().end_headers()

    def _is_qlog(self) -> bool:
        return self.path.partition("?")[0].endswith(("qlog", *_COMPRESSED_QLOG))

    def _is_unpacked_by_the_browser(self) -> bool:
        codings = [coding.partition(";")[0].strip() for coding in self.headers.get("Accept-Encoding", "").split(",")]
        return self.path.partition("?")[0].endswith(_COMPRESSED_QLOG) and "zstd" in codings

    def _of_job(self) -> PurePosixPath | None:
        """The path of the requested file in its job's folder; None for pages of the site and their own files."""
        if not hasattr(self, "path"):  # a request that could not be read
            return None
        inside = Path(os.path.relpath(self.translate_path(self.path), self.server.site))
        if len(inside.parts) <= _JOB_PARTS or "_" not in inside.parts[1]:
            return None
        file = PurePosixPath(*inside.parts[_JOB_PARTS:])
        return None if file == PurePosixPath("series.js") else file


def _is_own(host: str, names: set[str]) -> bool:
    """True when `Host` is an IP address or one of this server's names (RFC 9110 §7.2)."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() in names
    return True


def _is_served(site: Path, place: Path) -> bool:
    """True when `place` is a file or folder of the site whose path has no symbolic link, or when `place` is a symbolic
    link to the same file of the stored job."""
    try:
        parts = place.relative_to(site).parts
    except ValueError:
        return False
    current = site
    for number, part in enumerate(parts):
        current = current / part
        try:
            mode = current.lstat().st_mode
        except (OSError, ValueError):  # ValueError: the path has a null character
            return False
        if stat.S_ISLNK(mode):
            return number == len(parts) - 1 and _leads_to_its_job(current, parts)
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            return False
    return True


def _leads_to_its_job(link: Path, parts: tuple[str, ...]) -> bool:
    """True when `<run>/<pair>/<case>/<iteration>/artifacts/<file>` leads to a regular file of the same job.

    The target's path may not contain another symbolic link, because the job's folder may come from an untrusted person.
    """
    if len(parts) <= _JOB_PARTS + 1 or parts[_JOB_PARTS] != _LINKS:
        return False
    target = os.path.normpath(link.parent.resolve() / link.readlink())
    same_file = (*parts[1:_JOB_PARTS], *parts[_JOB_PARTS + 1 :])
    if Path(target).parts[-len(same_file) :] != same_file or os.path.realpath(link) != target:
        return False
    try:
        return stat.S_ISREG(os.lstat(target).st_mode)
    except OSError:
        return False
