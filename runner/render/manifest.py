"""The inputs from which a site was drawn, so that the next drawing draws only changed pages again.

Inputs are compared by name, size and modification time of their files; the contents are not read. The manifest is the
site's marker file. It is emptied before a drawing changes any page, and written at the end of the drawing. After an
interrupted drawing it is empty, so the next drawing draws all pages.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

MARKER = ".bentpipe-site"  # bentpipe never replaces a folder without this file


@dataclass
class Manifest:
    """The inputs of a drawing. `program`: digest of the program that drew.

    `cells` by `<run>/<pair>/<case>`. `runs` by name: digests of the inputs, and values that later drawings need.
    """

    program: str = ""
    cells: dict[str, tuple[str, str]] = field(default_factory=dict)  # digest, sparkline
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, site: Path, program: str) -> "Manifest":
        """The manifest of `site`; an empty manifest when `site` has none, or when another version of the program drew
        the site."""
        try:
            document = json.loads((site / MARKER).read_text(encoding="utf-8"))
            manifest = cls(**document)
            manifest.cells = {key: (value[0], value[1]) for key, value in manifest.cells.items()}
        except (OSError, ValueError, TypeError, IndexError):
            return cls(program=program)
        return manifest if manifest.program == program else cls(program=program)

    def save(self, site: Path) -> None:
        (site / MARKER).write_text(json.dumps(asdict(self), separators=(",", ":"), sort_keys=True), encoding="utf-8")


def digest(parts: Iterable[object]) -> str:
    """A digest of the parts, in their order."""
    digest_of_all = blake2b(digest_size=16)
    for part in parts:
        digest_of_all.update(repr(part).encode())
        digest_of_all.update(b"\0")
    return digest_of_all.hexdigest()


def files_digest(paths: Iterable[Path]) -> str:
    """A digest of names and contents of files. It is used only for the files of the program, which are few."""
    return digest((path.name, path.read_bytes()) for path in sorted(paths))


def folder_state(folder: Path, *, depth: int) -> list[tuple[str, int, int]]:
    """Name, size and modification time of every file in `folder`, and in its subfolders down to `depth`."""
    files: list[tuple[str, int, int]] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return files
    for entry in entries:
        about = entry.stat(follow_symlinks=False)
        files.append((entry.name, about.st_size, about.st_mtime_ns))
        if depth > 1 and entry.is_dir(follow_symlinks=False):
            files += folder_state(Path(entry.path), depth=depth - 1)
    return files
