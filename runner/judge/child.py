"""The process of the judge: reads calls, one after the other, and writes their results.

    python -m runner.judge.child CALLS RESULTS LIFE MEMORY

`CALLS`, `RESULTS`: descriptors of the pipes for both. `LIFE`: descriptor of a pipe; its other end closes when the
runner ends for any reason. `MEMORY`: bytes of data that the process may allocate. The process has no lock and no socket
of the runner.
"""

import os
import pickle
import resource
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection

_NICENESS = 10  # the judge must not delay the simulator


def main(arguments: list[str]) -> None:
    """Answer calls until their pipe ends."""
    calls, results, life, memory = (int(text) for text in arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner handles Ctrl-C
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with_runner, args=(life,), daemon=True).start()
    source, target = Connection(calls, writable=False), Connection(results, readable=False)
    with suppress(EOFError):
        while True:
            target.send_bytes(_answer(source.recv_bytes()))


def _end_with_runner(life: int) -> None:
    os.read(life, 1)  # no process writes to this pipe: the read ends when the runner ends
    os._exit(1)


def _answer(call: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(call)
        answer = pickle.dumps(("result", function(*arguments)))
    except MemoryError:
        return pickle.dumps(("memory", None))
    except Exception as error:
        error.add_note(traceback.format_exc())  # pickling loses the traceback
        try:
            answer = pickle.dumps(("error", error))
            pickle.loads(answer)  # some exceptions can't be unpickled
        except Exception:
            answer = pickle.dumps(("error", RuntimeError(f"{type(error).__name__}: {error}")))
    return answer


if __name__ == "__main__":
    main(sys.argv[1:])
