"""Makes run folders by number, in the cage, and sends them through every command that reads stored runs."""

import io
import json
import os
import re
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from types import TracebackType
from typing import IO, Any
from urllib.parse import quote

from lab.attack.folders import cage, mutations, seeds
from lab.attack.folders.documents import ALARM
from lab.attack.processes import family
from runner.cli import entry, read_commands
from runner.errors import BentpipeError
from runner.judge.process import JudgeLimits, Judges
from runner.site.server import SiteServer

_LOGS, _SITE, _SEEDS = cage.WORK / "logs", cage.WORK / "site", cage.WORK / "seeds"
_MOST_PAGES = 30
_MOST_READ = 64 << 20  # bytes read of an answer of the server, because a sparse file of a job can have a tebibyte
_NEW_SITE = 100  # folders after which the site is removed and drawn from nothing
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_CODES = {0, 1, 2, 3}
_INERT = ("text/plain", "application/octet-stream")  # types in which a browser runs no script
_EVIL = "evil."  # begins the names of pages that were planted among the files of jobs
_LOST, _ESCAPED = "lost", "escaped"
MUTATE = "mutate"  # stands in the report in the place of a command while a worker makes a folder


class _KeptJudges(Judges):
    """The judges of `analyse`, kept for the next call of the command: starting a judge takes a second.

    An exception of a call is printed with its traceback.
    """

    def call(self, limits: JudgeLimits, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return super().call(limits, function, *arguments)
        except (BentpipeError, OSError):
            raise
        except Exception as error:
            print("\n".join(error.__notes__))
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = lambda: False

    def end(self) -> None:
        """End its processes."""
        super().__exit__(None, None, None)


class Worker:
    """Sends batches of folders through the commands. Its report has a line of JSON before each command, and a line with
    all losses after each batch."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._report: IO[str] = io.StringIO()
        self._secret = b"CANARY" + os.urandom(12).hex().encode()
        seeds.make_seeds(_SEEDS)
        cage.plant_canaries(self._secret, _SEEDS / "handshake")
        read_commands.LOGS = _LOGS  # type: ignore[attr-defined]
        self._canaries = cage.digest(cage.CANARIES)
        self._found: list[dict[str, str]] = []
        self._printed = ""
        self._opens = cage.Opens()
        with _KeptJudges(1) as judges:
            read_commands.Judges = lambda *_, **__: judges  # type: ignore[assignment,attr-defined]
            for kind in seeds.KINDS:
                self.batch([], honest=kind)
                if self._found:
                    raise SystemExit(f"{kind}: an honest run does not hold: {self._found}")
            judges.end()
        self._opens.learn()

    def renew(self, report: IO[str]) -> None:
        """After a fork: report to another file, with a new judge."""
        self._report = report
        judges = _KeptJudges(1)
        read_commands.Judges = lambda *_, **__: judges  # type: ignore[assignment,attr-defined]

    def escapes(self) -> list[dict[str, str]]:
        """Files that were opened or changed outside since the last call."""
        return [
            {"verdict": _ESCAPED, "what": "write" if path.startswith("changed") else "read", "text": path}
            for path in self._opens.unusual()
        ]

    def batch(self, numbers: list[int], *, honest: str = "") -> None:
        """Make these folders and send them through the commands; without numbers, send an honest folder."""
        shutil.rmtree(_LOGS, ignore_errors=True)
        # Mostly the site is drawn over the previous site, as users do.
        if not numbers or numbers[0] % _NEW_SITE < len(numbers):
            shutil.rmtree(_SITE, ignore_errors=True)
        shutil.copytree(_SEEDS / seeds.GOOD, _LOGS / seeds.GOOD)
        good = cage.digest(_LOGS / seeds.GOOD)
        names, kinds = [], []
        for number in numbers:
            rng = Random(f"{self._seed}/{number}")
            kind = rng.choice(seeds.KINDS)
            name = f"n{number}" if rng.randrange(50) else f"n{number}é <b>&'"
            shutil.copytree(_SEEDS / kind, _LOGS / name)
            self._tell(doing=MUTATE, numbers=[number])
            done = mutations.mutate(rng, _LOGS / name)
            names.append(name)
            kinds += [line.partition(":")[0] for line in done]
        if honest:
            shutil.copytree(_SEEDS / honest, _LOGS / honest)
            names = [honest]
        self._found = []
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak of memory (proc(5))
        for name in names:
            self._alone(_LOGS / name, honest=bool(honest))
        self._together()
        if cage.digest(cage.CANARIES) != self._canaries:
            self._add(_ESCAPED, "write", "the canaries have changed")
        if cage.digest(_LOGS / seeds.GOOD) != good:
            self._add(_ESCAPED, "write", "another run has changed")
        if numbers:
            self._found += self.escapes()
        self._tell(done=numbers, kinds=kinds, found=self._found, peak=_peaks())

    def _alone(self, folder: Path, *, honest: bool) -> None:
        """Call the commands that take one run or two runs."""
        good = _LOGS / seeds.GOOD
        self._call("compare", folder, good, "--json", cage.WORK / "c.json", "--markdown", cage.WORK / "c.md")
        every = ",".join(reading_topics())
        self._call("compare", good, folder, "--despite", every, "--all")
        jobs = [path for path in sorted(folder.glob("*_*/*/*")) if path.is_dir()]
        for job in jobs[:2]:
            self._call("show", job)
        self._call("analyse", folder)
        # The recording of `variants` was made on a busy host, but its stored result doesn't have this disturbance.
        if honest and "no verdict changed" not in self._printed and folder.name != "variants":
            self._add(_LOST, "verdict", f"an honest run is judged otherwise: {self._printed}")
        for job in jobs[:1]:
            self._call("show", job)

    def _together(self) -> None:
        """Call the commands that take all runs. A mutated folder must not affect the honest folder."""
        self._call("history", "--logs", _LOGS, "--all")
        code = self._call("render", "--out", _SITE)
        if code != 0 or not (_SITE / seeds.GOOD / "index.html").is_file():
            self._add(_LOST, "others", f"the honest run is not drawn (exit code {code}): {self._printed[-1500:]}")
            return
        for path in _SITE.rglob("*.html"):
            text = path.read_bytes()
            if ALARM.encode() in text:
                self._add(_LOST, "markup", f"{path} has a script of the folder")
            if match := _COMMANDS.search(text.decode(errors="replace")):
                self._add(_LOST, "markup", f"{path} has the character U+{ord(match[0]):04X}")
        self._search(_SITE)
        self._serve()

    def _search(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            plain = path.is_file() and not path.is_symlink() and path.parts[4:5] != ("static",)
            if plain and self._secret in path.read_bytes():
                self._add(_ESCAPED, "leak", f"{path} contains the secret of the canaries")

    def _serve(self) -> None:
        """Request some files of the site as browsers do, and some files that the server must not send."""
        self._tell(doing="serve")
        pages = [path for path in sorted(_SITE.rglob("*")) if path.parts[4:5] != ("static",) and not path.is_dir()]
        chosen = Random(str(self._seed)).sample(pages, min(len(pages), _MOST_PAGES))
        chosen += [path for path in pages if path.name.startswith(_EVIL)][:_MOST_PAGES]
        paths = [quote(os.fsencode(path.relative_to(_SITE))) for path in chosen]
        paths += [
            "..%2f..%2f..%2fsrv/canary/secret",
            "../../../srv/canary/secret",
            "%00",
            "good/../../logs/good/run.json",
        ]
        with SiteServer(("127.0.0.1", 0), _SITE) as server:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            error = io.StringIO()
            with redirect_stderr(error):
                for path in paths:
                    self._get(server.server_address[1], path)
                self._get(server.server_address[1], "", host="evil.example")
            server.shutdown()
        if "Traceback" in error.getvalue():
            self._add(_LOST, "traceback", f"serve: {error.getvalue()[-3000:]}")

    def _get(self, port: int, path: str, *, host: str = "localhost") -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", f"/{path}", headers={"Host": host})
            answer = connection.getresponse()
            content = answer.read(_MOST_READ)
        except (OSError, HTTPException) as error:
            self._add(_LOST, "serve", f"{path}: {error!r}")
            return
        finally:
            connection.close()
        if self._secret in content or b"root:" in content[:100]:
            self._add(_ESCAPED, "leak", f"serve sends {path}")
        if host != "localhost" and answer.status != HTTPStatus.MISDIRECTED_REQUEST:
            self._add(_LOST, "serve", f"the name {host} is answered with {answer.status}")
        kind = answer.headers.get_content_type()
        is_page = kind not in _INERT and not path.endswith((".js", ".json"))  # the site has data with escaped texts
        if ALARM.encode() in content and (is_page or (_EVIL in path and kind not in _INERT)):
            self._add(_LOST, "markup", f"serve sends {path} as {kind}")
        if answer.headers.get("X-Content-Type-Options") != "nosniff" or "Content-Security-Policy" not in answer.headers:
            self._add(_LOST, "serve", f"{path} lacks its headers")

    def _call(self, *arguments: object) -> int:
        """Call a command as a user does. Returns its exit code."""
        texts = [str(argument) for argument in arguments]
        self._tell(doing=" ".join(texts)[:200])
        began = time.process_time()
        code: Any = 0
        place = cage.WORK / "printed.txt"
        with place.open("w", encoding="utf-8") as printed, redirect_stdout(printed), redirect_stderr(printed):
            try:
                sys.argv = ["bentpipe", *texts]
                entry()
            except SystemExit as end:
                code = end.code or 0
            except BaseException:
                self._add(_LOST, "traceback", f"{' '.join(texts)}\n{traceback.format_exc()}")
                return -1
        text = self._printed = place.read_text(encoding="utf-8")
        if code not in _CODES or "Traceback (most recent" in text:
            self._add(_LOST, "traceback", f"{' '.join(texts)}: exit code {code}\n{text[-3000:]}")
        if "which is a fault of bentpipe" in " ".join(text.split()):
            self._add(_LOST, "fault", f"{' '.join(texts)}: {text[-3000:]}")
        if _COMMANDS.search(text):
            self._add(_LOST, "terminal", f"{' '.join(texts)} prints control characters: {text!a:.2000}")
        if self._secret.decode() in text:
            self._add(_ESCAPED, "leak", f"{' '.join(texts)} prints the secret of the canaries")
        if "Read-only file system" in text or "Errno 30" in text:
            self._add(_ESCAPED, "write", f"{' '.join(texts)} tried to write elsewhere: {text[-1000:]}")
        if (took := time.process_time() - began) > 10:
            self._add(_LOST, "time", f"{' '.join(texts)} took {took:.1f} s of CPU time")
        return int(code)

    def _add(self, verdict: str, kind: str, text: str) -> None:
        self._found.append({"verdict": verdict, "what": kind, "text": text})

    def _tell(self, **line: object) -> None:
        self._report.write(json.dumps(line) + "\n")
        self._report.flush()


def reading_topics() -> Iterator[str]:
    """The topics of `compare --despite`."""
    from runner.compare import TOPICS  # noqa: PLC0415 - it is used only here

    return iter(TOPICS)


def _peaks() -> dict[str, int]:
    """The largest resident memory of the reader and of its judge since the batch began, in MiB."""
    sizes: dict[str, int] = {}
    for pid in family(os.getpid()):
        with suppress(OSError, IndexError):
            process = Path(f"/proc/{pid}")
            peak = int((process / "status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
            name = "reader, MiB" if pid == os.getpid() else "judge, MiB"
            sizes[name] = max(peak, sizes.get(name, 0))
            (process / "clear_refs").write_text("5")
    return sizes
