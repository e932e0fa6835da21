"""Output, key logs and qlogs that flood or lie."""

import gzip
import os
from contextlib import suppress

from common import AFTER, BESIDE, INSTEAD, behaviour


@behaviour(INSTEAD)
def endless_output():
    while True:
        os.write(1, b"y\n" * 32768)


@behaviour(INSTEAD)
def endless_escapes():
    while True:
        os.write(1, b"\x1b[2J\x1b]52;c;cm0gLXJm\x07\x9b31m\r" * 4096)


@behaviour(AFTER)
def escapes():
    os.write(
        1,
        b"\x1b[2J\x1b]0;title\x07\x1b]52;c;cm0gLXJm\x07\x1bP+q\x1b\\ \x9b31m \xe2\x80\xae <script>alert(1)</script>\n",
    )


@behaviour(AFTER)
def one_long_line():
    os.write(1, b"applied: cca=" + b"9" * 4_000_000)


@behaviour(AFTER)
def binary_output():
    os.write(2, os.urandom(2_000_000))


@behaviour(BESIDE)
def key_log_flood():
    with open("/logs/keys.log", "ab") as log:
        for number in range(500_000):
            log.write(b"CLIENT_TRAFFIC_SECRET_0 %064x %064x\n" % (number, number))


@behaviour(AFTER)
def key_log_lies():
    text = open("/logs/keys.log").read()
    with open("/logs/keys.log", "w") as log:
        for line in text.splitlines():
            label, identity, secret = line.split()
            for _ in range(200):
                log.write(f"{label} {identity} {os.urandom(len(secret) // 2).hex()}\n")
        log.write(text)


@behaviour(AFTER)
def key_log_wrong():
    text = open("/logs/keys.log").read()
    with open("/logs/keys.log", "w") as log:
        for line in text.splitlines():
            label, identity, secret = line.split()
            log.write(f"{label} {identity} {secret[::-1]}\n")


@behaviour(AFTER)
def key_log_link():
    with suppress(OSError):
        os.unlink("/logs/keys.log")
    os.symlink("/certs/priv.key", "/logs/keys.log")


@behaviour(AFTER)
def key_log_pipe():
    with suppress(OSError):
        os.unlink("/logs/keys.log")
    os.mkfifo("/logs/keys.log")


@behaviour(AFTER)
def qlog_bomb():
    os.makedirs("/logs/qlog", exist_ok=True)
    with gzip.open("/logs/qlog/bomb.qlog.gz", "wb", 1) as file:
        for _ in range(1000):
            file.write(bytes(1 << 20))


@behaviour(AFTER)
def qlog_deep():
    os.makedirs("/logs/qlog", exist_ok=True)
    with open("/logs/qlog/a.sqlog", "wb") as file:
        file.write(b'\x1e{"trace":{}}\n\x1e{"time":1,"name":"x","data":' + b"[" * 2_000_000 + b"\n")


@behaviour(AFTER)
def qlog_lies():
    os.makedirs("/logs/qlog", exist_ok=True)
    with open("/logs/qlog/a.sqlog", "wb") as file:
        file.write(b'\x1e{"trace":{}}\n')
        for number in range(200_000):
            file.write(
                b'\x1e{"time":%d,"name":"recovery:metrics_updated","data":{"congestion_window":%d}}\n'
                % (number, number**3)
            )


@behaviour(AFTER)
def qlog_many():
    os.makedirs("/logs/qlog", exist_ok=True)
    for number in range(3900):
        with open(f"/logs/qlog/{number}.qlog", "wb") as file:
            file.write(b'{"traces":[{"events":[[1,"recovery","metrics_updated",{"cwnd":NaN}]]}]}')
