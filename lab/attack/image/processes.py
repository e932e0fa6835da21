"""Processes that multiply, take memory, stop, crash or never end."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress

from common import AFTER, BESIDE, INSTEAD, behaviour


@behaviour(AFTER)
def fork_bomb():
    while True:
        with suppress(OSError):
            os.fork()


@behaviour(AFTER)
def threads():
    while True:
        with suppress(RuntimeError):
            threading.Thread(target=time.sleep, args=(1000,)).start()


@behaviour(INSTEAD)
def memory():
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20)))


@behaviour(AFTER)
def zombies():
    for _ in range(5000):
        try:
            if os.fork() == 0:
                os._exit(0)
        except OSError:
            break


@behaviour(AFTER)
def daemons():
    for _ in range(50):
        if os.fork() == 0:
            os.setsid()
            time.sleep(10_000)


@behaviour(BESIDE)
def ignore_sigterm():
    for number in range(1, 32):
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    time.sleep(10_000)


@behaviour(INSTEAD)
def never_end():
    time.sleep(10_000)


@behaviour(INSTEAD)
def burn():
    for _ in range(os.cpu_count() or 1):
        if os.fork() == 0:
            break
    while True:
        pass


@behaviour(INSTEAD)
def stop_itself():
    os.kill(1, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)


@behaviour(INSTEAD)
def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


@behaviour(AFTER)
def pretend_unsupported():
    sys.exit(127)


@behaviour(INSTEAD)
def end_at_once():
    sys.exit(0)
