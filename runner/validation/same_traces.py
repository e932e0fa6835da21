"""Digests of the decoder's tables and of the facts for stored captures, to compare two versions of the decoder.

    python -m runner.validation.same_traces FOLDER… > before.txt     with the old version
    python -m runner.validation.same_traces FOLDER… | diff before.txt -   with the new version

Prints one line for each `*.pcap` and `*.pcapng` below the folders, with digests of its tables and of its metadata with
its checks. For each job, which has `sim/left` and `sim/right`, prints one more line with a digest of its facts. For a
folder without key logs, the key logs of the folder above are used.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.decode import Trace, decode_capture
from runner.decode.schema import TABLES
from runner.errors import CaptureError
from runner.trace import facts


def _captures(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(path for path in folder.rglob("*.pcap*") if path.suffix in (".pcap", ".pcapng"))


def _job(capture: Path) -> Path:
    """The folder of a capture's job: the folder above `sim`, because `sim` has only the link's files."""
    return capture.parent.parent if capture.parent.name == "sim" else capture.parent


def _key_logs(capture: Path) -> list[Path]:
    return sorted(_job(capture).rglob("*key*.log"))


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _tables(trace: Trace) -> str:
    return " ".join(_digest(getattr(trace, name).to_pydict()) for name in TABLES)


def main() -> None:
    """Print the digests."""
    jobs: dict[Path, dict[str, Trace]] = {}
    for capture in _captures(Path(argument) for argument in sys.argv[1:]):
        try:
            trace = decode_capture(capture, _key_logs(capture))
        except CaptureError as error:
            print(f"{capture}: {type(error).__name__}")
            continue
        print(f"{capture}: {_tables(trace)} {_digest((trace.meta, trace.checks))}", flush=True)
        sides = jobs.setdefault(_job(capture), {})
        sides[capture.stem] = trace
        if sides.keys() == {"left", "right"}:
            print(f"{_job(capture)}: facts {_digest(facts(sides['left'], sides['right']))}", flush=True)
            sides.clear()


if __name__ == "__main__":
    main()
