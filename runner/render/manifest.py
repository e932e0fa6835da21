"""The inputs that a site was drawn from, so that the next drawing repeats only changed pages.

Inputs are compared by name, size and modification time of their files, without reading them. The manifest is the
site's marker file. It is emptied before a drawing changes anything, and written when everything is done. An
interrupted drawing leaves it empty, and the next drawing starts from nothing.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

MARKER = ".bentpipe-site"  # a folder without it is not ours to replace


@dataclass
class Manifest:
    """`program`: digest of all that draws. `newest`: the run that the site opens with.

    `cells` by `<run>/<pair>/<case>`, `runs` by name: inputs, what was kept.
    """

    program: str = ""
    newest: str = ""
    cells: dict[str, tuple[str, str]] = field(default_factory=dict)  # digest, sparkline
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, site: Path, program: str) -> "Manifest":
        """That of `site`; an empty one where there is none, or where another program drew it."""
        try:
            document = json.loads((site / MARKER).read_text(encoding="utf-8"))
            found = cls(**document)
            found.cells = {key: (value[0], value[1]) for key, value in found.cells.items()}
        except (OSError, ValueError, TypeError, IndexError):
            return cls(program=program)
        return found if found.program == program else cls(program=program)

    def save(self, site: Path) -> None:
        (site / MARKER).write_text(json.dumps(asdict(self), separators=(",", ":"), sort_keys=True), encoding="utf-8")


def digest(parts: Iterable[object]) -> str:
    """A digest of the texts."""
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(repr(part).encode())
        found.update(b"\0")
    return found.hexdigest()


def files_digest(paths: Iterable[Path]) -> str:
    """A digest of the contents of files; used for the few files that make up the program."""
    return digest((path.name, path.read_bytes()) for path in sorted(paths))


def folder_state(folder: Path, *, depth: int) -> list[tuple[str, int, int]]:
    """Name, size and time of change of every file in `folder`, and in its folders down to `depth`."""
    found: list[tuple[str, int, int]] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return found
    for entry in entries:
        about = entry.stat(follow_symlinks=False)
        found.append((entry.name, about.st_size, about.st_mtime_ns))
        if depth > 1 and entry.is_dir(follow_symlinks=False):
            found += folder_state(Path(entry.path), depth=depth - 1)
    return found
