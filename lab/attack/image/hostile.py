"""Runs the behaviour that CLIENT_PARAMS or SERVER_PARAMS names, beside, after or instead of an honest endpoint."""

import os
import sys
import threading
import time

import disk  # noqa: F401 - each of these modules registers its behaviours
import evidence  # noqa: F401
import lies  # noqa: F401
import network  # noqa: F401
import processes  # noqa: F401
import rights  # noqa: F401
from common import AFTER, BEFORE, BEHAVIOURS, BESIDE, INSTEAD, LIE, ROLE, honest


def main():
    name = os.environ.get("CLIENT_PARAMS") or os.environ.get("SERVER_PARAMS") or ""
    if name not in BEHAVIOURS:
        sys.exit(honest().wait())
    when, function = BEHAVIOURS[name]
    if when == LIE:
        sys.exit(honest("/hostile/lying.py", LIE=name).wait())
    if when in (INSTEAD, BEFORE):
        function()
    process = honest()
    if when == BESIDE:
        threading.Thread(target=function, daemon=True).start() if name != "ignore-sigterm" else None
    if when == AFTER and ROLE == "server":
        time.sleep(1.0)
        function()
    if name == "ignore-sigterm":
        function()
    code = process.wait()
    if when == BESIDE:
        time.sleep(3.5)
    if when == AFTER and ROLE == "client":
        function()
    sys.exit(code)


if __name__ == "__main__":
    main()
