"""Containers of the harness that serve several jobs and read commands from stdin."""

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

_OUTPUT_LIMIT = MIB  # bytes that a resident may print in addition to its answers
_SILENCE = 60.0  # seconds without an answer
_LINES = 20  # lines of the output of an ended holder in an error message
_AHEAD = 16  # most blocks of an answer that wait for their reader
_REQUEST, _FRAME = struct.Struct(">II"), struct.Struct(">IBI")  # sim/tools/hold
_OUTPUT, _END, _GONE = 0, 1, 2  # kinds of frames; the last kind is made here, at the end of the stream
_STDOUT = 1
# Sorted by depth, then by name, so that the selection does not depend on the file system. Depth and number of
# members are limited already here: the names of 16,000 nested folders once took 15 GB.
_TAR = (
    'cd "$1" && find "$2" -maxdepth "$3" -printf "%d\\t%p\\0" 2> /dev/null | LC_ALL=C sort -z -k1,1n -k2 | cut -z -f2-'
    ' | head -z -n "$4" | exec tar --no-recursion --null --verbatim-files-from -T - -c 2> /dev/null'
)


class Resident(Supervised):
    """A container that reads commands from its stdin and ends when its stdin ends."""

    _has_stdin = True

    def __init__(self, engine: Engine, container: str, bell: Bell) -> None:
        super().__init__(engine, container, bell, output_limit=_OUTPUT_LIMIT)

    def say(self, data: bytes) -> None:
        """Write to the container's stdin. Raises LaneError when the container has ended."""
        if self._stream is None:
            raise LaneError("no-lane", "The container was not started.")
        self._stream.write(data)


class Holder(Resident):
    """A resident that runs `hold`, which runs many commands at the same time in its namespaces. The engine needs a
    tenth of a second of CPU time to run a command or to read a folder; `hold` only starts a process."""

    def __init__(self, engine: Engine, container: str, bell: Bell, *, silence: float = _SILENCE) -> None:
        """`silence`: seconds without an answer after which a command counts as lost."""
        super().__init__(engine, container, bell)
        self._silence = silence
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[tuple[int, bytes]]] = {}
        self._rest = bytearray()
        self._gone = False

    def run(self, command: Sequence[str]) -> Generator[bytes, None, int]:
        """Yields the output of a command in blocks, and returns its exit code. Closing the generator kills the command.
        Raises LaneError when the holder ends, or when it prints nothing for `silence` seconds.
        """
        number, frames = next(self._numbers), queue.Queue[tuple[int, bytes]](_AHEAD)
        self._answers[number] = frames
        kind = _OUTPUT
        try:
            if self._gone:
                raise LaneError("holder-died", "A holder has ended.", printed=self.last_lines(_LINES))
            words = "\0".join(command).encode()
            self.say(_REQUEST.pack(number, len(words)) + words)
            while True:
                kind, data = frames.get(timeout=self._silence)
                if kind == _END:
                    return int(data)
                if kind == _GONE:
                    raise LaneError("holder-died", "A holder ended while it worked.", printed=self.last_lines(_LINES))
                yield data
        except queue.Empty:
            raise LaneError("holder-silent", f"A holder said nothing for {self._silence:g} s: {command[0]}") from None
        finally:
            del self._answers[number]
            while not frames.empty():  # the reader of the stream may wait for a free place in the queue
                frames.get_nowait()
            if kind == _OUTPUT and not self._gone:
                with suppress(LaneError):
                    self.say(_REQUEST.pack(number, 0))

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command to its end. Returns its exit code and its output."""
        running, printed = self.run(command), bytearray()
        while True:
            try:
                printed += next(running)
            except StopIteration as end:
                return end.value, printed.decode(errors="replace")

    def archive(self, path: str) -> Iterator[bytes]:
        """Yields a folder as tar, in blocks: at most COPY_MEMBERS members, down to the depth DEPTH. Slightly more than
        these limits is sent, so that the reader notices that members are left out.
        """
        folder = PurePosixPath(path)
        limits = (str(DEPTH + 1), str(COPY_MEMBERS + 2))
        return self.run(["sh", "-c", _TAR, "tar", str(folder.parent), folder.name, *limits])

    def _read(self) -> None:
        super()._read()
        self._gone = True
        for frames in list(self._answers.values()):
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
            elif (frames := self._answers.get(number)) is not None:
                frames.put((kind, content))
