"""The process of the judge: reads calls from its standard input, one after the other, and writes their results.

    python -m runner.judge.child RESULTS LIFE MEMORY

`RESULTS`: descriptor for the results. `LIFE`: descriptor of a pipe; its other end closes when the runner ends for any
reason. `MEMORY`: bytes of data that the process may allocate. The process has no lock and no socket of the runner.
"""

import os
import pickle
import resource
import signal
import struct
import sys
import threading
import traceback
from typing import BinaryIO

_NICENESS = 10  # the judge must not delay the simulator
HEADER = struct.Struct(">Q")


def main(arguments: list[str]) -> None:
    """Answer calls until the standard input ends."""
    results, life, memory = (int(text) for text in arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner handles Ctrl-C
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with_runner, args=(life,), daemon=True).start()
    with os.fdopen(results, "wb") as target:
        while (call := read_message(sys.stdin.buffer)) is not None:
            target.write(_answer(call))
            target.flush()


def _end_with_runner(life: int) -> None:
    os.read(life, 1)  # no process writes to this pipe: the read ends when the runner ends
    os._exit(1)


def _answer(call: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(call)
        answer = message(("result", function(*arguments)))
    except MemoryError:
        return message(("memory", None))
    except Exception as error:
        error.add_note(traceback.format_exc())  # pickling loses the traceback
        try:
            answer = message(("error", error))
            pickle.loads(answer[HEADER.size :])  # some exceptions can't be unpickled
        except Exception:
            answer = message(("error", RuntimeError(f"{type(error).__name__}: {error}")))
    return answer


def message(value: object) -> bytes:
    """The bytes of a value for a pipe: the length of its pickle, then the pickle."""
    data = pickle.dumps(value)
    return HEADER.pack(len(data)) + data


def read_message(source: BinaryIO) -> bytes | None:
    """The pickle of the next message; None at the end."""
    header = source.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    data: bytes = source.read(length)
    return data if len(data) == length else None


if __name__ == "__main__":
    main(sys.argv[1:])
