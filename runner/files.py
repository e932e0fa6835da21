"""Files in untrusted folders: safe reads and removals, compressed logs, the lock of a folder, mistakes in JSON."""

import fcntl
import gc
import io
import json
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TextIO

from runner.errors import InUseError, SetupError, UsageError
from runner.units import MIB

# Reads and removes files in untrusted folders: only up to a limit, never through a link, and never outside the folder.
#
# A run folder may come from anywhere: its names, links, pipes and sizes are untrusted input.

LARGEST_DOCUMENT = 64 * MIB  # bytes of a JSON file or a log; the largest run.json of this project has 3 MiB
_DEEPEST = 12  # folders below a job's folder
_MOST_ENTRIES = 20_000  # files and folders of a job; the runner copies at most 4096 out of each container's folder


class RefusedFileError(OSError):
    """A file that must not be read: a link, a pipe, a device, or a too large file. The message names the reason."""

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(why)
        self.strerror = why
        self.filename = str(path)

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(path: Path | str) -> int:
    """Open the regular file `path` for reading and return its descriptor. Raises OSError, and RefusedFileError when
    `path` is not a regular file. `path` must not be a symbolic link. A pipe without a writer doesn't block the call."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if Path(path).is_symlink():
            raise RefusedFileError(path, "it is a symbolic link") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RefusedFileError(path, "it is not a regular file")
    return descriptor


def read_regular(path: Path | str, *, limit: int = LARGEST_DOCUMENT) -> bytes:
    """The content of a regular file. Raises OSError, and RefusedFileError when the file has more than `limit` bytes or
    is not regular."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = min(limit, os.fstat(file.fileno()).st_size)  # a read reserves as much memory as it may fill
        content = file.read(size + 1)
        if len(content) > size:
            content += file.read(limit - size)
    if len(content) > limit:
        raise RefusedFileError(path, f"it is larger than {limit:,} B")
    return content


def read_head(path: Path, *, size: int) -> bytes:
    """The first `size` bytes of a regular file; all bytes of a shorter file. Raises OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(size)


def foreign_entry(folder: Path) -> str | None:
    """The first entry in a job's folder that bentpipe never writes: a link, a pipe, a device, too many files, too deep
    folders. None when there is no such entry or no folder."""
    if folder.is_symlink():
        return f"{folder.name} is a symbolic link"
    waiting = [(folder, 0)]
    count = 0
    while waiting:
        current, depth = waiting.pop()
        try:
            entries = os.scandir(current)
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{current.relative_to(folder.parent)} can't be read ({error.strerror})"
        with entries:
            for entry in entries:
                count += 1
                name = Path(entry.path).relative_to(folder)
                if count > _MOST_ENTRIES:
                    return f"it contains more than {_MOST_ENTRIES:,} files"
                if entry.is_symlink():
                    return f"{shown_name(name)} is a symbolic link"
                if entry.is_dir(follow_symlinks=False):
                    if depth == _DEEPEST:
                        return f"{shown_name(name)} lies deeper than {_DEEPEST} folders"
                    waiting.append((Path(entry.path), depth + 1))
                elif not entry.is_file(follow_symlinks=False):
                    return f"{shown_name(name)} is neither a file nor a folder"
    return None


def beneath(root: Path, relative: Path | str) -> Path:
    """The path `root / relative`, which need not exist. Raises UsageError when `relative` is empty, or contains `..` or
    a symbolic link. `root` itself may be a link."""
    place = root
    for part in Path(relative).parts:
        if part in ("..", "/"):
            raise UsageError(f"{shown_name(relative)} leads out of {root}: nothing is written or removed there.")
        place = place / part
        if place.is_symlink():
            raise UsageError(f"{place} is a symbolic link, which bentpipe never makes there: remove it.")
    if place == root:
        raise UsageError(f"{shown_name(relative)} is {root} itself: nothing is written or removed there.")
    return place


def remove_tree(root: Path, relative: Path | str) -> None:
    """Remove a folder below `root` with its content. A missing folder is no error. Raises UsageError like `beneath`."""
    place = beneath(root, relative)
    try:
        shutil.rmtree(place)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        place.unlink(missing_ok=True)


def shown_name(name: PurePath | str) -> str:
    """The first 200 characters of a stranger's name, in ASCII when they can't be printed."""
    text = str(name)
    text = text if len(text) <= 200 else f"{text[:200]}…"
    return text if text.isprintable() else ascii(text)


# Logs of endpoints on disk: plain while a job runs, compressed with Zstandard (RFC 8878) after the job was judged.
#
# A qlog shrinks to about 8 % of its size. Captures are not compressed: their content is encrypted and would shrink by
# only 7 %, and Wireshark opens plain captures with a double click.

SUFFIX = ".zst"
_PART = ".part"
_CODEC = "zstd"
_BLOCK = 1 << 20  # bytes
MOST_BYTES = 1 << 30  # most bytes of a decompressed log: a few hostile kilobytes could unpack to terabytes


class _Bounded(io.RawIOBase):
    """The decompressed content of a file, at most `MOST_BYTES`. A damaged file ends where the damage begins."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa  # noqa: PLC0415 - slow to import

        self._file = pa.OSFile(str(path))
        self._stream = pa.CompressedInputStream(self._file, _CODEC)
        self._left = MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer as far as there is data. Returns the number of bytes, 0 at the end."""
        try:
            data = self._stream.read(min(len(buffer), self._left))
        except (OSError, ValueError):
            self._left = 0
            return 0
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the compressed file, too."""
        if not self.closed:
            self._stream.close()
            self._file.close()
        super().close()


def open_log(path: Path) -> BinaryIO:
    """Open a log for sequential reading, compressed or not. Raises OSError when the file can't be opened."""
    return io.BufferedReader(_Bounded(path)) if path.suffix == SUFFIX else path.open("rb")


def log_files(folder: Path) -> list[Path]:
    """The regular files below a folder of logs, sorted; symbolic links are left out."""
    if not folder.is_dir() or folder.is_symlink():
        return []
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def compress_logs(folder: Path) -> None:
    """Compress every file below `folder` and remove the plain file. A kill at any moment loses nothing."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import

    for path in log_files(folder):
        if path.suffix == _PART:
            path.unlink()  # an earlier call was killed; the plain file is still there
        if path.suffix in (SUFFIX, _PART):
            continue
        target, part = path.with_name(path.name + SUFFIX), path.with_name(f".{path.name}{SUFFIX}{_PART}")
        with (
            path.open("rb") as source,
            pa.OSFile(str(part), "wb") as file,
            pa.CompressedOutputStream(file, _CODEC) as out,
        ):
            while block := source.read(_BLOCK):
                out.write(block)
        part.replace(target)
        path.unlink()


# Locks a folder for one runner. The kernel releases the lock when the runner's process ends in any way.
#
# It is a record lock (fcntl(2), F_SETLK), which children don't inherit. With flock(2), a forked child of a killed
# runner would keep the folder locked.

LOCK_NAME = ".lock"
# Folders that this process has locked. The kernel would grant a record lock to the same process twice, and releases the
# lock when the process closes any descriptor of the file. So a folder in this set is refused before its lock file is
# opened.
_held: set[Path] = set()
_changing_held = threading.Lock()


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process. A missing folder is created. Raises InUseError when a living process has the
    lock; the message names the process and its host. Raises UsageError when the folder can't be written."""
    place = folder.resolve()
    with _changing_held:
        if place in _held:
            raise _refusal(folder, f"process {os.getpid()}, this one")
        file = _open_lock(folder)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # EACCES or EAGAIN, depending on the file system
            file.seek(0)
            owner = file.read(200).strip()
            file.close()
            raise _refusal(folder, owner or "an unknown process") from error
        _held.add(place)
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}")
        file.flush()
        yield
    finally:
        with _changing_held:
            file.close()
            _held.discard(place)


def own_folder(folder: Path) -> Path:
    """Make `folder` if it is missing, and keep other users from writing to it. Raises SetupError when it is a link or
    belongs to somebody else: this process would then work where a stranger can plant links."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o755)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise SetupError(
            f"{folder} must be a folder of this process's user ({os.geteuid()}): remove it, or set TMPDIR to another "
            "folder."
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        folder.chmod(0o755)
    return folder


def remove_abandoned(scratch: Path) -> None:
    """Remove the folders `scratch/bentpipe-*` whose processes were killed: their lock files are not locked any more."""
    for lock in scratch.glob(f"bentpipe-*/{LOCK_NAME}"):
        with suppress(UsageError), locked_folder(lock.parent):
            shutil.rmtree(lock.parent, ignore_errors=True)


def _refusal(folder: Path, owner: str) -> InUseError:
    return InUseError(f"Another runner ({owner}) works on {folder}: wait for it, or choose another --run.")


def _open_lock(folder: Path) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(folder / LOCK_NAME, flags, 0o644)
    except OSError as error:
        why = f"its {LOCK_NAME} is no file" if (folder / LOCK_NAME).is_symlink() else error.strerror
        raise UsageError(f"The run folder {folder} can't be written: {why}.") from error
    return os.fdopen(descriptor, "a+", errors="replace")


@contextmanager
def without_collection() -> Iterator[None]:
    """Switch off Python's search for unused cycles while files are read. The objects that a reader makes all stay in
    use, and the search would visit all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# The words for mistakes in files of JSON, instead of the words that libraries have for programmers.

_LONGEST_VALUE = 80  # characters of a wrong value that a message shows
_RENAMED = {"alpn": "speaks"}
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_FORMS = {
    "object": "write an object, { … }",
    "array": "write a list, [ … ]",
    "integer": "write a whole number, without quotes",
    "number": "write a number, without quotes",
    "boolean": "write true or false, without quotes",
    "string": 'write text, in quotes, "…"',
}
"""Type of JSON Schema → what a person is told to write."""
_MISTAKES = {
    **dict.fromkeys(("model_type", "dataclass_type", "dataclass_exact_type", "dict_type"), _FORMS["object"]),
    **dict.fromkeys(("list_type", "tuple_type"), _FORMS["array"]),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), _FORMS["integer"]),
    **dict.fromkeys(("float_type", "float_parsing"), _FORMS["number"]),
    "bool_type": _FORMS["boolean"],
    "string_type": _FORMS["string"],
    **dict.fromkeys(("literal_error", "enum"), "write %(expected)s"),
    "greater_than": "write a number above %(gt)s",
    "greater_than_equal": "write a number of at least %(ge)s",
    "less_than": "write a number below %(lt)s",
    "less_than_equal": "write a number of at most %(le)s",
    "too_short": "write at least %(min_length)s of them",
    "too_long": "write at most %(max_length)s of them",
}
"""Kind of a mistake, as pydantic calls it → what a person is told to write."""
_SYNTAX = {
    "Expecting ',' delimiter": "write a comma, or close the list or the object",
    "Expecting ':' delimiter": "write a colon",
    "Expecting property name": 'write a name in double quotes, or remove the comma before "}"',
    "Expecting value": 'write a value: "text", a number, true, false, null, a list or an object',
    "Illegal trailing comma": "remove the comma",
    "Extra data": "remove what follows the end of the document",
    "Unterminated string": "the text that begins there has no end: close it by a double quote",
    "Invalid control character": "write \\n for a line break in a text, and \\t for a tab",
    "Invalid \\": "write two backslashes for one",
}
"""Beginning of a message of `json` → what a person is told to write."""


def not_json(error: Exception) -> str:
    """Why a text is not JSON: the place, and what to write there. `error`: of `json`, or bentpipe's ValueError."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "it is not a text in UTF-8"
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    if not error.doc.strip():
        return "it is empty"
    if error.pos >= len(error.doc.rstrip()):
        return f"it ends too early, in line {error.lineno}"
    hint = next((hint for beginning, hint in _SYNTAX.items() if error.msg.startswith(beginning)), "correct the text")
    return f"line {error.lineno}, column {error.colno}: {hint}"


def field_name(place: Sequence[str | int]) -> str:
    """What a message calls a place of a file: `field 'runs[0].name'`, or the file itself."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place if part != "[key]")
    return f"field '{''.join(parts).removeprefix('.')}'" if place else "the file"


def shown_value(value: Any) -> str:
    """A wrong value as it is in the file; the beginning of a long value."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def wrong_field(mistakes: Iterable[Mapping[str, Any]], form: Mapping[str, Any]) -> str:
    """One mistake of a file: the field, its value and the expected value. An unknown field is reported first, because
    it may be a misspelling of a missing field. `mistakes`: of pydantic.
    `form`: the JSON Schema of the file."""
    first = min(mistakes, key=lambda mistake: mistake["type"] not in _UNKNOWN)
    kind, place, value = first["type"], first["loc"], first["input"]
    field = field_name(place)
    around = _properties(form, [str(part) for part in place[:-1]])
    if kind in _UNKNOWN:
        name, known = str(place[-1]), list(around)
        near = _RENAMED.get(name) or next(iter(get_close_matches(name, known, n=1)), None)
        return f"{field} is not known: " + (f"did you mean {near}?" if near else f"there are {', '.join(known)}.")
    about = around.get(str(place[-1]), {}) if place else {}
    if kind == "missing":
        actual, expected = " is missing", _FORMS.get(about.get("type", ""), "add it")
    else:
        actual = "" if isinstance(value, dict | list) else f" is {shown_value(value)}"
        expected = _MISTAKES.get(kind, "") % first.get("ctx", {}) or first["msg"].removeprefix("Value error, ")
    unit = about.get("description")
    return f"{field}{actual}: {expected}{f' ({unit})' if unit else ''}."


def _properties(form: Mapping[str, Any], place: Iterable[str]) -> dict[str, Any]:
    """The JSON Schema of each field of the object at `place` of a file."""
    node = dict(form)
    for part in place:
        choices = (node.get("properties", {}).get(part), node.get("items"), node.get("additionalProperties"))
        node = next((choice for choice in choices if choice and isinstance(choice, dict)), {})
        node = node.get("anyOf", [node])[0]  # the second choice is null
        if reference := node.get("$ref"):
            node = form["$defs"][reference.rpartition("/")[2]]
    return dict(node.get("properties", {}))
