"""Files and folders that fill the disk, nest deeply, link elsewhere, or have odd names."""

import os
import shutil
import socket
import time
from contextlib import suppress

from common import AFTER, BESIDE, behaviour, escaped, fill

# Name, when, the beginning of the files' paths, bytes of a file. Each is a behaviour.
FILLED = (
    ("fill-root", AFTER, "/var/fill", 900 << 20),
    ("fill-logs", AFTER, "/logs/fill", 200 << 20),
    ("fill-downloads", AFTER, "/downloads/fill", 200 << 20),
    ("fill-shm", AFTER, "/dev/shm/fill", 200 << 20),
)
for name, when, path, size in FILLED:
    behaviour(when, name)(lambda path=path, size=size: fill(path, 40, size))


@behaviour(AFTER)
def reserve_root():
    for number in range(60):
        with suppress(OSError), open(f"/var/reserved{number}", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 900 << 20)
    time.sleep(1.0)


@behaviour(BESIDE)
def fill_root_slowly():
    for number in range(4000):
        fill(f"/var/slow{number}-", 1, 4 << 20)
        time.sleep(0.02)


@behaviour(AFTER)
def inodes_root():
    os.makedirs("/var/many")
    for number in range(3_000_000):
        os.close(os.open(f"/var/many/{number}", os.O_CREAT | os.O_WRONLY))


@behaviour(AFTER)
def inodes_logs():
    for number in range(2_000_000):
        os.close(os.open(f"/logs/{number}", os.O_CREAT | os.O_WRONLY))


@behaviour(AFTER)
def sparse_logs():
    for number in range(50):
        with suppress(OSError), open(f"/logs/sparse{number}", "wb") as file:
            file.truncate(1 << 30)


@behaviour(AFTER)
def sparse_downloads():
    for number in range(50):
        with suppress(OSError), open(f"/downloads/sparse{number}", "wb") as file:
            file.truncate(1 << 30)


def nest(path):
    os.chdir(path)
    for _ in range(16000):
        os.mkdir("d" * 250)
        os.chdir("d" * 250)


@behaviour(AFTER)
def nest_logs():
    nest("/logs")


@behaviour(AFTER)
def nest_downloads():
    nest("/downloads")


@behaviour(AFTER)
def long_names():
    for number in range(3000):
        open(f"/logs/{number:04d}" + "n" * 251, "w").close()


@behaviour(AFTER)
def odd_names():
    for name in (b"\xff\xfe", b"a\nb", b"\x1b[2J", b"-rf", b"<script>", b"..\\..", b"%2e%2e", b" ", b"evidence.json"):
        for folder in (b"/logs/", b"/downloads/"):
            with suppress(OSError):
                open(folder + name, "w").close()


@behaviour(AFTER)
def our_names():
    for name in ("evidence.json", "result.json", "output.log", "series.json", "left.pcap", "truth.json", "run.json"):
        with open(f"/logs/{name}", "w") as file:
            file.write('{"schema": 1, "outcome": "succeeded"}' + "x" * 1000)


@behaviour(AFTER)
def hard_links():
    fill("/logs/one", 1, 60 << 20)
    for number in range(3000):
        os.link("/logs/one0", f"/logs/link{number}")


@behaviour(AFTER)
def symbolic_links():
    for number in range(2000):
        os.symlink("/etc/shadow" if number % 2 else "../" * 20 + "etc", f"/logs/link{number}")
    shutil.rmtree("/logs/qlog", ignore_errors=True)
    os.symlink("/", "/logs/qlog")


@behaviour(AFTER)
def pipes_and_sockets():
    for number in range(100):
        os.mkfifo(f"/logs/pipe{number}")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("/logs/socket")
    with suppress(OSError):
        os.mknod("/logs/device", 0o20666, os.makedev(1, 5))
        with open("/logs/device", "rb"):
            escaped("a device node")
