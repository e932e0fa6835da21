"""Sends mutated run folders through every command that reads stored runs, in a cage.

    unshare … python -m lab.attack.folders SEED PATIENCE FIRST END

The cage has its own mounts, processes, network, host name and System V objects (unshare(1), namespaces(7)). All mounts
become read-only, except those of the work folder, the canaries, /dev/shm and /proc. fanotify(7) watches the mounts of
this namespace, so it reports only files that processes inside the cage open. The canaries are writable, so that a
forbidden write succeeds and is noticed.

In the cage, a keeper forks workers. A worker takes a batch of folders at a time, and is killed when it needs too much
time or memory. When a batch has a loss, its folders are tried again one by one, to find the folder that causes the
loss. The keeper writes a line of JSON to its standard output for each batch.
"""

import ctypes
import gzip
import hashlib
import io
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from types import TracebackType
from typing import IO, Any
from urllib.parse import quote

import pyarrow as pa

from lab.attack import mutations
from lab.attack.mutations import ALARM
from lab.attack.verdicts import Finding, Tally, Verdict, cpu_s, family, largest_resident, reset_peak, resident, runs
from lab.run_folders import rare_run, recorded_run, variants_run, vias_run
from runner.cli import entry as bentpipe
from runner.cli import read_commands
from runner.compare import TOPICS
from runner.errors import BentpipeError
from runner.judge import process
from runner.judge.process import JudgeLimits, Judges
from runner.model.run import Job
from runner.paths import ROOT
from runner.site.server import SiteServer
from runner.store.runs import RunFolder

WORK = Path("/media/work")
CANARIES = Path("/srv/canary")
_WRITABLE = (str(WORK.parent), str(CANARIES.parent), "/dev/shm")
ENTER = ("unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")
_LIBC = ctypes.CDLL(None, use_errno=True)
_FAN_CLASS_NOTIF, _FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_UNLIMITED_QUEUE = 0, 1, 2, 0x10
_FAN_MARK_ADD, _FAN_MARK_MOUNT = 0x01, 0x10
_FAN_MODIFY, _FAN_OPEN = 0x02, 0x20
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")  # struct fanotify_event_metadata
# Files that a Python interpreter may read at any time, and files of the host that bentpipe reads.
_USUAL = re.compile(
    r"/(usr|lib|lib64|bin|sbin)(/|$)|/etc/(ld\.so|localtime|mime\.types|ssl|hosts|host\.conf|nsswitch|passwd|group|resolv)"
    r"|/proc/(self|\d+)/(stat|statm|status|clear_refs|fd|task|maps|mountinfo|cgroup|limits)|/proc/(stat|meminfo|cpuinfo|uptime|filesystems)"
    r"|/proc/(pressure|sys/)|/sys/(devices/system/cpu|fs/cgroup)|/dev/(null|urandom|shm|pts|tty$)|/$|anon_inode|pipe:|socket:"
)


def enter_cage() -> None:
    """Set up the mounts of this namespace. Call this once, in a process that the command ENTER started."""
    _run("mount", "--make-rprivate", "/")
    for place in _WRITABLE:
        _run("mount", "-t", "tmpfs", "-o", "size=4g,mode=755", "attack", place)
    WORK.mkdir()
    os.environ["TMPDIR"] = str(WORK.parent)
    CANARIES.mkdir()
    for place in _mounts():
        if place not in ("/proc", *_WRITABLE):
            subprocess.run(["mount", "-o", "remount,bind,ro", place], check=False, capture_output=True)
    _run("ip", "link", "set", "lo", "up")


def _mounts() -> list[str]:
    """The places of all mounts of this namespace."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split(" ")[4].encode().decode("unicode_escape") for line in lines]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def plant_canaries(secret: bytes, run: Path) -> None:
    """Make files that no command should read or change, each with `secret` in it. One folder is a copy of a run."""
    (CANARIES / "secret").write_bytes(secret)
    precious = CANARIES / "precious" / "handshake" / "1"
    precious.mkdir(parents=True)
    (precious / "result.json").write_bytes(b'{"schema": 1, "secret": "%s"}' % secret)
    (CANARIES / "precious" / "thesis.tex").write_bytes(secret)
    subprocess.run(["cp", "-r", str(run), str(CANARIES / "run")], check=True)
    for path in (CANARIES / "run").rglob("*.json"):
        path.write_bytes(path.read_bytes().replace(b'"quinn"', b'"%s"' % secret))


def digest(folder: Path) -> str:
    """A digest of names, types and contents below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(os.fsencode(path) + b"\0")
        if path.is_file() and not path.is_symlink():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


class Opens:
    """Reports the files that processes in the cage opened or changed outside of WORK since the last call."""

    def __init__(self) -> None:
        flags = _FAN_CLASS_NOTIF | _FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_UNLIMITED_QUEUE
        self._descriptor = _LIBC.fanotify_init(flags, os.O_RDONLY | os.O_LARGEFILE)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "fanotify_init")
        self._usual: set[str] = set()
        self._own = tuple(
            str(Path(place).resolve())
            for place in (sys.prefix, sys.base_prefix, ROOT / "runner", ROOT / "web/templates")
        ) + tuple(str(ROOT / name) for name in ("web", "testcases", "implementations", "docs", "sim", "guest"))
        self._mark()

    def _mark(self) -> None:
        """Watch every mount except WORK's, which all targets may read and write."""
        for place in _mounts():
            if place == str(WORK.parent):
                continue
            mask = ctypes.c_uint64(_FAN_OPEN | _FAN_MODIFY)
            marked = _LIBC.fanotify_mark(
                self._descriptor, _FAN_MARK_ADD | _FAN_MARK_MOUNT, mask, _AT_FDCWD, os.fsencode(place)
            )
            if marked < 0 and place in ("/", str(CANARIES.parent)):
                raise OSError(ctypes.get_errno(), f"fanotify_mark {place}")

    def learn(self) -> None:
        """From now on, don't report the files that were opened so far."""
        self._usual |= {path for path, _ in self._events()}

    def unusual(self) -> list[str]:
        """Paths that commands don't open for an honest folder, each once, with the operation."""
        states = dict.fromkeys(
            f"{'changed' if mask & _FAN_MODIFY else 'opened'} {path}"
            for path, mask in self._events()
            if path not in self._usual and not self._is_usual(path)
        )
        return list(states)

    def _is_usual(self, path: str) -> bool:
        if path.startswith(self._own) or path == str(ROOT) or path.startswith(str(ROOT / "implementations")):
            return True
        return _USUAL.match(path) is not None

    def _events(self) -> Iterator[tuple[str, int]]:
        while True:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return
            position = 0
            while position < len(data):
                length, _, _, _, mask, descriptor, _ = _EVENT.unpack_from(data, position)
                position += length
                if descriptor < 0:
                    continue
                try:
                    path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
                except OSError:
                    path = "?"
                os.close(descriptor)
                yield path, mask


KINDS = ("handshake", "measured", "paths", "rare", "retry", "variants")
GOOD = "good"  # the run that is never mutated


def make_seeds(folder: Path) -> None:
    """Make a run of each of KINDS, and GOOD, below `folder`."""
    source = recorded_run(folder / "source")
    _part(source, folder / "handshake", ("quinn_quinn/handshake",))
    _part(source, folder / "measured", ("quinn_quinn/goodput",))
    _part(source, folder / "retry", ("quic-go_quinn/handshake", "aioquic_aioquic/handshake"))
    _part(source, folder / GOOD, ("quinn_quinn/handshake", "quinn_quinn/goodput"))
    shutil.rmtree(source.path)
    rare_run(folder / "rare")
    vias_run(folder / "paths", iterations=1)
    variants = variants_run(folder / "variants-of-all")
    _part(variants, folder / "variants", ("quinn+iw=32_c/goodput",))
    shutil.rmtree(variants.path)
    for kind in ("measured", "variants"):
        for job in (folder / kind).glob("*_*/*/1"):
            _add_logs(job)


def _part(source: RunFolder, target: Path, cells: tuple[str, ...]) -> None:
    """A copy of the run with only some of its cells, named after its folder."""
    document = json.loads((source.path / "run.json").read_bytes())
    kept = [entry for entry in document["order"] if f"{entry['server']}_{entry['client']}/{entry['case']}" in cells]
    names = {entry[role] for entry in kept for role in ("server", "client")}
    document |= {
        "name": target.name,
        "order": kept,
        "servers": sorted({entry["server"] for entry in kept}),
        "clients": sorted({entry["client"] for entry in kept}),
        "cases": {name: case for name, case in document["cases"].items() if name in {entry["case"] for entry in kept}},
        "implementations": {name: record for name, record in document["implementations"].items() if name in names},
    }
    target.mkdir(parents=True)
    (target / "run.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    for entry in kept:
        job = Job(**{key: entry[key] for key in ("server", "client", "case", "iteration")})
        shutil.copytree(source.path / job.path, target / job.path)


def _add_logs(job: Path) -> None:
    """Add logs and qlogs like those of endpoints, plain and compressed, where the recording has none."""
    text = b"applied: cca=cubic iw=10 ack=2\nlistening\n" + b"".join(b"line %d of a log\n" % line for line in range(50))
    for role in ("client", "server"):
        qlogs = job / role / "qlog"
        qlogs.mkdir(parents=True, exist_ok=True)
        (job / role / "output.log").write_bytes(text)
        (qlogs / "b.qlog.gz").write_bytes(gzip.compress(_qlog(role), mtime=0))
        (qlogs / "c.sqlog").write_bytes(_qlog(role) * 2)
        with pa.OSFile(str(qlogs / "d.sqlog.zst"), "wb") as file, pa.CompressedOutputStream(file, "zstd") as packed:
            packed.write(_qlog(role))
    (job / "output.log").write_bytes(text * 2)
    (job / "attempts.log").write_bytes(b"attempt 1: disturbed: the host was busy\n" + text)


def _qlog(role: str) -> bytes:
    rng = Random(role)
    lines: list[dict[str, object]] = [{"qlog_format": "JSON-SEQ", "trace": {"configuration": {"time_units": "us"}}}]
    for number in range(40):
        name = rng.choice(("recovery:metrics_updated", "transport:packet_sent", "recovery:parameters_set"))
        data = {"congestion_window": 12000 + 1200 * number, "cc_algorithm": "cubic"}
        lines.append({"time": number * 1000.5, "name": name, "data": data})
    return b"".join(b"\x1e" + json.dumps(line).encode() + b"\n" for line in lines)


_LOGS, _SITE, _SEEDS = WORK / "logs", WORK / "site", WORK / "seeds"
_MOST_PAGES = 30
_MOST_READ = 64 << 20  # bytes read of an answer of the server, because a sparse file of a job can have a tebibyte
_NEW_SITE = 100  # folders after which the site is removed and drawn from nothing
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_CODES = {0, 1, 2, 3}
_INERT = ("text/plain", "text/csv", "application/octet-stream")  # types in which a browser runs no script
_EVIL = "evil."  # begins the names of pages that were planted among the files of jobs
_LOST, _ESCAPED = "lost", "escaped"
MUTATE = "mutate"  # stands in the report in the place of a command while a worker makes a folder


class _KeptJudges(Judges):
    """The judges of `analyse`, kept for the next call of the command: starting a judge takes a second.

    They have the reader's priority: on a busy host a judge of low priority takes minutes for a second of work, and the
    campaign waits. An exception of a call is printed with its traceback.
    """

    def _take(self, memory: int) -> process._Process:
        known = set(self._all)
        judge = super()._take(memory)
        if judge not in known:
            judge.call(JudgeLimits(), self._must_end, os.getpid, ())  # by then it has lowered its priority
            os.setpriority(os.PRIO_PROCESS, judge._process.pid, os.getpriority(os.PRIO_PROCESS, 0))
        return judge

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
        make_seeds(_SEEDS)
        plant_canaries(self._secret, _SEEDS / "handshake")
        read_commands.LOGS = _LOGS  # type: ignore[attr-defined]
        self._canaries = digest(CANARIES)
        self._found: list[dict[str, str]] = []
        self._printed = ""
        self._opens = Opens()
        with _KeptJudges(1) as judges:
            process.Judges = lambda *_, **__: judges  # type: ignore[assignment,misc]
            for kind in KINDS:
                self.batch([], honest=kind)
                if self._found:
                    raise SystemExit(f"{kind}: an honest run does not hold: {self._found}")
            judges.end()
        self._opens.learn()

    def renew(self, report: IO[str]) -> None:
        """After a fork: report to another file, with a new judge."""
        self._report = report
        judges = _KeptJudges(1)
        process.Judges = lambda *_, **__: judges  # type: ignore[assignment,misc]

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
        shutil.copytree(_SEEDS / GOOD, _LOGS / GOOD)
        good = digest(_LOGS / GOOD)
        names, kinds = [], []
        for number in numbers:
            rng = Random(f"{self._seed}/{number}")
            kind = rng.choice(KINDS)
            name = f"n{number}" if rng.randrange(50) else f"n{number}é <b>&'"
            shutil.copytree(_SEEDS / kind, _LOGS / name)
            self._tell(doing=MUTATE)
            done = mutations.mutate(rng, _LOGS / name)
            names.append(name)
            kinds += [line.partition(":")[0] for line in done]
        if honest:
            shutil.copytree(_SEEDS / honest, _LOGS / honest)
            names = [honest]
        self._found = []
        reset_peak(os.getpid())
        for name in names:
            self._alone(_LOGS / name, honest=bool(honest))
        self._together()
        if digest(CANARIES) != self._canaries:
            self._add(_ESCAPED, "write", "the canaries have changed")
        if digest(_LOGS / GOOD) != good:
            self._add(_ESCAPED, "write", "another run has changed")
        if numbers:
            self._found += self.escapes()
        self._tell(numbers=numbers, kinds=kinds, found=self._found, peak=_peaks())

    def _alone(self, folder: Path, *, honest: bool) -> None:
        """Call the commands that take one run or two runs."""
        good = _LOGS / GOOD
        self._call("compare", folder, good, "--json", WORK / "c.json", "--markdown", WORK / "c.md")
        self._call("compare", good, folder, "--despite", ",".join(TOPICS), "--all")
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
        if code != 0 or not (_SITE / GOOD / "index.html").is_file():
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
        place = WORK / "printed.txt"
        with place.open("w", encoding="utf-8") as printed, redirect_stdout(printed), redirect_stderr(printed):
            try:
                sys.argv = ["bentpipe", *texts]
                bentpipe()
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


def _peaks() -> dict[str, int]:
    """The largest resident memory of the reader and of its judge since the batch began, in MiB."""
    sizes: dict[str, int] = {}
    for pid in family(os.getpid()):
        name = "reader, MiB" if pid == os.getpid() else "judge, MiB"
        sizes[name] = max(largest_resident(pid) >> 20, sizes.get(name, 0))
        reset_peak(pid)
    return sizes


_BATCH = 10  # folders that share a site
_LIFE = 400  # folders of one worker
_POLL_S = 0.4
_CPU_S = 10.0  # the most CPU time of one command
_MUTATE_S = 120.0  # the most CPU time for making a folder
_WALL_S = 60.0  # the longest time in one command in which no process can run; waiting for a CPU doesn't count
_MEMORY = 1 << 30  # the most resident bytes of one process


@dataclass(kw_only=True)
class _Batch:
    """A worker's report about some folders."""

    numbers: list[int]
    kinds: list[str] = field(default_factory=list)
    found: list[dict[str, str]] = field(default_factory=list)
    peak: dict[str, float] = field(default_factory=dict)


class _ExcessError(Exception):
    """A worker needed too much time or memory, or died."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.what = kind


class Keeper:
    """Forks workers from a process that has already made the seeds and loaded templates and modules."""

    def __init__(self, worker: Worker, patience: float) -> None:
        self._worker = worker
        self._wall_s = _WALL_S * patience

    def reports(self, numbers: list[int]) -> Iterator[dict[str, Any]]:
        """The results of the folders, batch by batch, in order."""
        while numbers:
            with closing(self._batches(numbers[:_LIFE], _BATCH)) as batches:
                for batch in batches:
                    numbers = numbers[len(batch.numbers) :]
                    if batch.found:  # end this worker before its folders are sent again
                        break
                    yield self._report(batch, [])
            if batch.found:
                yield self._report(batch, self._alone(batch))

    @staticmethod
    def _report(batch: "_Batch", losses: list[tuple[int, dict[str, str]]]) -> dict[str, Any]:
        return {"numbers": batch.numbers, "kinds": batch.kinds, "peak": batch.peak, "losses": losses}

    def _alone(self, batch: "_Batch") -> list[tuple[int, dict[str, str]]]:
        """Send each folder of the batch alone through the commands. Returns the losses with the numbers of their
        folders. When no folder causes a loss again, the losses of the batch count for its first folder."""
        losses: list[tuple[int, dict[str, str]]] = []
        for number in batch.numbers:
            for alone in self._batches([number], 1):
                losses += [(number, loss) for loss in alone.found]
        return losses or [(batch.numbers[0], loss) for loss in batch.found]

    def _batches(self, numbers: list[int], size: int) -> Generator[_Batch]:
        """The batches of one worker until it ends or is killed."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._work(writing, numbers, size)
        os.close(writing)
        doing = ["start"]
        try:
            for batch in self._watched(pid, reading, doing):
                numbers = numbers[len(batch.numbers) :]
                yield batch
        except _ExcessError as excess:
            self._end(pid)
            losses = [{"verdict": "lost", "what": excess.what, "text": f"{doing[0]}: {excess}\n"}]
            losses += self._worker.escapes()
            yield _Batch(numbers=numbers[:size], found=losses)
        finally:
            self._end(pid)
            os.close(reading)

    def _work(self, writing: int, numbers: list[int], size: int) -> None:
        """The work of a worker process."""
        code, report = 1, os.fdopen(writing, "w")
        try:
            self._worker.renew(report)
            for start in range(0, len(numbers), size):
                self._worker.batch(numbers[start : start + size])
            code = 0
        except BaseException:
            report.write(json.dumps({"doing": traceback.format_exc()}) + "\n")
            report.flush()
        finally:
            os._exit(code)

    def _watched(self, pid: int, reading: int, doing: list[str]) -> Iterator[_Batch]:
        began, idle, cpu, buffer = time.monotonic(), 0.0, 0.0, b""
        while True:
            data = b""
            if select.select([reading], [], [], _POLL_S)[0]:
                data = os.read(reading, 1 << 20)
                if not data:
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    if status == 0:
                        return
                    raise _ExcessError("death", f"the process ended with {status}")
            *lines, buffer = (buffer + data).split(b"\n")
            for line in map(json.loads, lines):
                doing[0], began, cpu = str(line.get("doing", "between")), time.monotonic(), cpu_s(family(pid))
                if "doing" not in line:
                    yield _Batch(**line)
                    began, cpu = time.monotonic(), cpu_s(family(pid))
            members = family(pid)  # once, because this look is most of the keeper's work
            if any(map(runs, members)):
                idle = time.monotonic()
            burnt, waited = cpu_s(members) - cpu, time.monotonic() - max(began, idle)
            if burnt > (_CPU_S if doing[0] != MUTATE else _MUTATE_S):
                raise _ExcessError("time", f"{burnt:.1f} s of CPU time")
            if waited > self._wall_s:
                raise _ExcessError("time", f"{waited:.1f} s, of them {burnt:.1f} s of CPU time")
            largest = max(map(resident if doing[0] == MUTATE else largest_resident, members))
            if largest > _MEMORY:
                raise _ExcessError("memory", f"{largest / 2**20:.0f} MiB")

    @staticmethod
    def _end(pid: int) -> None:
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return
            for process in reversed(family(pid)):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            os.waitpid(pid, 0)


def main(arguments: list[str]) -> None:
    """Enter the cage and work."""
    seed, patience = int(arguments[0]), float(arguments[1])
    numbers = list(range(int(arguments[2]), int(arguments[3])))
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    enter_cage()
    os.chdir(WORK)
    os.environ["COLUMNS"] = "120"
    # With a single CPU, `render` draws all pages in its own process.
    os.sched_setaffinity(0, {Random(numbers[0]).choice(sorted(os.sched_getaffinity(0)))})
    for line in Keeper(Worker(seed), patience).reports(numbers):
        report.write(json.dumps(line) + "\n")
        report.flush()


_CHUNK = 10_000  # folders of one cage, whose start takes 10 s of CPU time


def attack_folders(
    tally: Tally, *, seed: int, numbers: range, progress: Callable[[Tally], None], patience: float = 1.0
) -> None:
    """Send the folders of `seed` with these `numbers` through the commands. Waits may take `patience` times as long as
    usual."""
    while numbers:
        began = time.monotonic()
        for report in _reports(seed, numbers[:_CHUNK], patience):
            done = report["numbers"]
            numbers = numbers[len(done) :]
            tally.tried += len(done)
            _count(tally, seed, report)
            tally.seconds, began = tally.seconds + time.monotonic() - began, time.monotonic()
            progress(tally)


def _count(tally: Tally, seed: int, report: dict[str, Any]) -> None:
    tally.kinds.update(report["kinds"])
    for measurement, value in report["peak"].items():
        tally.peak(measurement, value)
    for number, loss in report["losses"]:
        attack = f"folders --seed {seed} --only {number}"
        tally.add(Finding(attack=attack, verdict=Verdict(loss["verdict"]), what=loss["what"], text=loss["text"]))


def _reports(seed: int, numbers: range, patience: float) -> Iterator[dict[str, Any]]:
    """The batches of one cage. When a cage dies, its current batch counts as lost."""
    arguments = (str(seed), str(patience), str(numbers.start), str(numbers.stop))
    with tempfile.TemporaryFile() as errors:
        command = (*ENTER, sys.executable, "-m", "lab.attack.folders", *arguments)
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdout is not None
        try:
            count = 0
            for report in map(json.loads, process.stdout):
                count += len(report["numbers"])
                yield report
            if process.wait() != 0 or count < len(numbers):
                raise RuntimeError(f"The cage ended with {process.returncode}: {_tail(errors)}")
        finally:
            process.kill()  # because of --kill-child, this also ends all processes in the namespace
            process.wait()
            process.stdout.close()


def _tail(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, 2) - 2000))
    return file.read().decode(errors="replace")


def stop_with_parent() -> None:
    """Make a SIGTERM end this process like Ctrl-C, so that its cages end with it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


if __name__ == "__main__":
    main(sys.argv[1:])
