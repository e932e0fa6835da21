"""Containers of ours that stay while jobs come and go, and are told what to do through their stdin."""

import itertools
import queue
import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from runner.collect import COPY_MEMBERS, DEPTH
from runner.engine.containers import Engine
from runner.errors import LaneError
from runner.lanes.supervised import Bell, Supervised
from runner.units import MIB

_OUTPUT_LIMIT = MIB  # bytes that one prints besides what it was asked for
_SILENCE = 60.0  # s
_LINES = 20  # of the output of a holder that ended
_AHEAD = 16  # blocks of an answer that wait for whoever asked
_REQUEST, _FRAME = struct.Struct(">II"), struct.Struct(">IBI")  # sim/tools/hold
_OUTPUT, _END, _GONE = 0, 1, 2  # kinds of frames; the last one is ours: nothing more will come
_STDOUT = 1
# What lies near the top first, then by name: what is left out must not depend on the file system. Depth and members are
# bounded here already: names of folders that lie 16,000 deep once took 15 GB.
_TAR = (
    'cd "$1" && find "$2" -maxdepth "$3" -printf "%d\\t%p\\0" 2> /dev/null | LC_ALL=C sort -z -k1,1n -k2 | cut -z -f2-'
    ' | head -z -n "$4" | exec tar --no-recursion --null --verbatim-files-from -T - -c 2> /dev/null'
)


class Resident(Supervised):
    """Its container has a stdin, and ends with it."""

    _told = True

    def __init__(self, engine: Engine, container: str, bell: Bell) -> None:
        super().__init__(engine, container, bell, output_limit=_OUTPUT_LIMIT)

    def say(self, data: bytes) -> None:
        """Write to its stdin. Raises LaneError when it runs no more."""
        if self._stream is None:
            raise LaneError("no-lane", "The container was not started.")
        self._stream.write(data)


class Holder(Resident):
    """One that runs `hold`: commands in its namespaces, many at once. A command costs an engine a tenth of a second of
    CPU time, and a folder as much; this costs a process."""

    def __init__(self, engine: Engine, container: str, bell: Bell) -> None:
        super().__init__(engine, container, bell)
        self._numbers = itertools.count(1)
        self._asked: dict[int, queue.Queue[tuple[int, bytes]]] = {}
        self._rest = bytearray()
        self._gone = False

    def run(self, command: Sequence[str]) -> Generator[bytes, None, int]:
        """What a command prints, in blocks; its exit code is the value of the generator. Closing it kills the command.

        Raises LaneError when the holder ends, or nothing comes for a minute.
        """
        number, frames = next(self._numbers), queue.Queue[tuple[int, bytes]](_AHEAD)
        self._asked[number] = frames
        kind = _OUTPUT
        try:
            if self._gone:
                raise LaneError("holder-died", "A holder has ended.", printed=self.last_lines(_LINES))
            words = "\0".join(command).encode()
            self.say(_REQUEST.pack(number, len(words)) + words)
            while True:
                kind, data = frames.get(timeout=_SILENCE)
                if kind == _END:
                    return int(data)
                if kind == _GONE:
                    raise LaneError("holder-died", "A holder ended while it worked.", printed=self.last_lines(_LINES))
                yield data
        except queue.Empty:
            raise LaneError("holder-silent", f"A holder said nothing for {_SILENCE:g} s: {command[0]}") from None
        finally:
            del self._asked[number]
            while not frames.empty():  # who reads the stream may be waiting for room
                frames.get_nowait()
            if kind == _OUTPUT and not self._gone:
                with suppress(LaneError):
                    self.say(_REQUEST.pack(number, 0))

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command to its end. Returns exit code and what it printed."""
        running, printed = self.run(command), bytearray()
        while True:
            try:
                printed += next(running)
            except StopIteration as end:
                return end.value, printed.decode(errors="replace")

    def archive(self, path: str) -> Iterator[bytes]:
        """A folder as tar with that one on top, in blocks: what lies at most DEPTH deep, COPY_MEMBERS members.

        A few more are sent, so that who reads them knows that something was left out.
        """
        folder = PurePosixPath(path)
        limits = (str(DEPTH + 1), str(COPY_MEMBERS + 2))
        return self.run(["sh", "-c", _TAR, "tar", str(folder.parent), folder.name, *limits])

    def _read(self) -> None:
        super()._read()
        self._gone = True
        for frames in list(self._asked.values()):
            frames.put((_GONE, b""))

    def _take(self, source: int, data: bytes) -> None:
        if source != _STDOUT:
            super()._take(source, data)
            return
        self._rest += data
        while len(self._rest) >= _FRAME.size:
            number, kind, length = _FRAME.unpack_from(self._rest)
            end = _FRAME.size + length
            if len(self._rest) < end:
                return
            content = bytes(memoryview(self._rest)[_FRAME.size : end])
            del self._rest[:end]
            if number == 0 and kind == _OUTPUT:
                super()._take(source, content)
            elif (frames := self._asked.get(number)) is not None:
                frames.put((kind, content))
