"""Functions that all behaviours of hostile endpoint images share.

A behaviour that leaves the container, or succeeds in a forbidden action, is written to /logs/escaped.txt.
"""

import ctypes
import os
import subprocess

ROLE = os.environ.get("ROLE", "client")
LIBC = ctypes.CDLL(None, use_errno=True)
PEER = "193.167.100.100" if ROLE == "client" else "193.167.0.100"
OWN = "193.167.0.100" if ROLE == "client" else "193.167.100.100"
BEFORE, AFTER, INSTEAD, BESIDE, LIE = "before", "after", "instead", "beside", "lie"
BEHAVIOURS = {}


def behaviour(when, name=""):
    def note(function):
        BEHAVIOURS[name or function.__name__.replace("_", "-")] = (when, function)
        return function

    return note


def escaped(action):
    with open("/logs/escaped.txt", "a") as file:
        file.write(action + "\n")


def honest(program=f"/opt/aioquic/endpoint/{ROLE}.py", **more):
    environment = {k: v for k, v in os.environ.items() if k not in ("CLIENT_PARAMS", "SERVER_PARAMS")}
    return subprocess.Popen(["/opt/aioquic/bin/python", program], env=environment | more)


def fill(path, files=1, size=1 << 20):
    block = os.urandom(1 << 20)
    for number in range(files):
        try:
            with open(f"{path}{number}", "wb") as file:
                written = 0
                while written < size:
                    written += file.write(block[: size - written])
        except OSError:
            return
