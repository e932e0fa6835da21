"""What hostile endpoint images do. Each function is one behaviour, beside, behind or instead of an honest endpoint.

What gets out of the container, or is allowed and should not be, is written to /logs/escaped.txt.
"""

import ctypes
import gzip
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress

ROLE = os.environ.get("ROLE", "client")
LIBC = ctypes.CDLL(None, use_errno=True)
PEER = "193.167.100.100" if ROLE == "client" else "193.167.0.100"
OWN = "193.167.0.100" if ROLE == "client" else "193.167.100.100"
BEFORE, AFTER, INSTEAD, BESIDE = "before", "after", "instead", "beside"
BEHAVIOURS = {}


def behaviour(when):
    def note(function):
        BEHAVIOURS[function.__name__.replace("_", "-")] = (when, function)
        return function

    return note


def escaped(what):
    with open("/logs/escaped.txt", "a") as file:
        file.write(what + "\n")


def honest():
    environment = {k: v for k, v in os.environ.items() if k not in ("CLIENT_PARAMS", "SERVER_PARAMS")}
    return subprocess.Popen(["/opt/aioquic/bin/python", f"/opt/aioquic/endpoint/{ROLE}.py"], env=environment)


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


# --- disk


@behaviour(AFTER)
def fill_root():
    fill("/var/fill", 40, 900 << 20)


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
def fill_logs():
    fill("/logs/fill", 40, 200 << 20)


@behaviour(AFTER)
def inodes_logs():
    for number in range(2_000_000):
        os.close(os.open(f"/logs/{number}", os.O_CREAT | os.O_WRONLY))


@behaviour(AFTER)
def fill_downloads():
    fill("/downloads/fill", 40, 200 << 20)


@behaviour(AFTER)
def fill_shm():
    fill("/dev/shm/fill", 40, 200 << 20)


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
    one = socket.socket(socket.AF_UNIX)
    one.bind("/logs/socket")
    with suppress(OSError):
        os.mknod("/logs/device", 0o20666, os.makedev(1, 5))
        with open("/logs/device", "rb"):
            escaped("a device node")


# --- processes


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


# --- what it prints and leaves as evidence


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


# --- network


def raw():
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    one.bind(("eth0", 0))
    return one, one.getsockname()[4]


def total(data):
    data += b"\0" * (len(data) % 2)
    words = sum(struct.unpack(f">{len(data) // 2}H", data))
    words = (words & 0xFFFF) + (words >> 16)
    return ~(words + (words >> 16)) & 0xFFFF


def ip4(source, target, protocol, payload):
    head = struct.pack(
        ">BBHHHBBH4s4s",
        0x45,
        0,
        20 + len(payload),
        1,
        0,
        64,
        protocol,
        0,
        socket.inet_aton(source),
        socket.inet_aton(target),
    )
    return head[:10] + struct.pack(">H", total(head)) + head[12:] + payload


def send_all(frames, seconds=2.0):
    one, _ = raw()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for frame in frames:
            with suppress(OSError):
                one.send(frame)
        time.sleep(0.005)


def ethernet(payload, kind=b"\x08\x00", target=b"\xff" * 6):
    return target + raw()[1] + kind + payload


@behaviour(BESIDE)
def forge_close():
    udp = struct.pack(">HHHH", 443, 50000, 8 + 1200, 0) + b"\xc3\x00\x00\x00\x01" + os.urandom(1195)
    send_all([ethernet(ip4(PEER, OWN, 17, udp)), ethernet(ip4(PEER, PEER, 17, udp))])


@behaviour(BESIDE)
def forge_arp():
    frames = []
    for address in (PEER, "193.167.0.2", "193.167.100.2"):
        mac = raw()[1]
        frames.append(
            ethernet(
                struct.pack(
                    ">HHBBH6s4s6s4s",
                    1,
                    0x800,
                    6,
                    4,
                    2,
                    mac,
                    socket.inet_aton(address),
                    b"\xff" * 6,
                    socket.inet_aton(OWN),
                ),
                b"\x08\x06",
            )
        )
    send_all(frames)


@behaviour(BESIDE)
def forge_routers():
    payload = bytes((134, 0, 0, 0, 64, 0)) + bytes(10) + os.urandom(32)
    header = (
        struct.pack(">IHBB", 6 << 28, len(payload), 58, 255)
        + socket.inet_pton(10, "fe80::1")
        + socket.inet_pton(10, "ff02::1")
    )
    send_all([ethernet(header + payload, b"\x86\xdd", b"\x33\x33\0\0\0\1")])


@behaviour(BESIDE)
def forge_everything():
    end = time.monotonic() + 3
    one, mac = raw()
    while time.monotonic() < end:
        with suppress(OSError):
            one.send(
                random.choice((b"\xff" * 6, os.urandom(6)))
                + random.choice((mac, os.urandom(6)))
                + os.urandom(random.randrange(2, 1400))
            )


@behaviour(INSTEAD)
def flood_initials():
    one = socket.socket(type=socket.SOCK_DGRAM)
    while True:
        one.sendto(
            b"\xc3\x00\x00\x00\x01\x08" + os.urandom(8) + b"\x08" + os.urandom(8) + b"\x00\x44\x96" + os.urandom(1174),
            (PEER, 443),
        )


@behaviour(INSTEAD)
def flood_small():
    one = socket.socket(type=socket.SOCK_DGRAM)
    while True:
        one.sendto(b"\x40", (PEER, 443))


@behaviour(BESIDE)
def attack_simulator():
    for _ in range(2000):
        with suppress(OSError):
            socket.create_connection(("193.167.0.2", 57832), 0.2).send(os.urandom(5000))
    for port in range(1, 1025):
        with suppress(OSError):
            one = socket.create_connection(("193.167.0.2" if ROLE == "client" else "193.167.100.2", port), 0.02)
            if port != 57832:
                escaped(f"port {port} of the simulator: {one.getpeername()}")


@behaviour(BESIDE)
def reach_out():
    for target in ("172.17.0.1", "10.0.0.1", "169.254.169.254", "192.168.0.1", "193.167.0.1", "8.8.8.8", "127.0.0.11"):
        for port in (22, 53, 80, 443, 2375, 2376):
            with suppress(OSError):
                socket.create_connection((target, port), 0.1)
                escaped(f"reached {target}:{port}")
    for address in ("/var/run/docker.sock", "/run/containerd/containerd.sock"):
        if os.path.exists(address):
            escaped(address)


@behaviour(BESIDE)
def scan_lanes():
    one = socket.socket(type=socket.SOCK_DGRAM)
    one.settimeout(0.02)
    for last in range(1, 255):
        for network in ("193.167.0", "193.167.100", "172.17.0", "172.18.0"):
            address = f"{network}.{last}"
            if address in (PEER, OWN):
                continue
            with suppress(OSError):
                one.sendto(b"\xc3\x0a\x0a\x0a\x0a\x08" + bytes(1300), (address, 443))
                _, sender = one.recvfrom(2000)
                if sender[0] not in (PEER, OWN):
                    escaped(f"{sender} answers")


def run(command):
    return subprocess.run(command, shell=True, capture_output=True, timeout=10).returncode == 0


@behaviour(AFTER)
def link_down():
    run("ip link set eth0 down")


@behaviour(BEFORE)
def small_mtu():
    run("ip link set eth0 mtu 68")


@behaviour(BEFORE)
def take_the_peers_address():
    run(f"ip address add {PEER}/32 dev lo")


@behaviour(BEFORE)
def shape_own_link():
    run("tc qdisc add dev eth0 root netem delay 2s loss 60%")


# --- rights


@behaviour(BESIDE)
def gain_rights():
    for number in (0, *range(4, 40)):
        LIBC.prctl(24, number, 0, 0, 0)
    status = open("/proc/self/status").read()
    effective = int(status.partition("CapEff:\t")[2].split()[0], 16)
    allowed = sum(1 << bit for bit in (0, 1, 3, 5, 6, 7, 10, 12, 13))
    if effective & ~allowed:
        escaped(f"capabilities {effective & ~allowed:x}")
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        os.execv("/setuid-shell", ["setuid-shell", "-p", "-c", "[ $EUID = 0 ] && exit 7"])
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7:
        escaped("setuid")


@behaviour(BESIDE)
def mounts():
    for what, function in (
        ("mount", lambda: LIBC.mount(b"none", b"/mnt", b"tmpfs", 0, None)),
        ("unshare", lambda: LIBC.unshare(0x10000000)),
        ("chroot", lambda: LIBC.chroot(b"/")),
    ):
        if function() == 0:
            escaped(what)
    for path in (
        "/www/x",
        "/certs/x",
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/fs/cgroup/x",
        "/dev/kmsg",
        "/proc/sys/net/core/rmem_max",
    ):
        with suppress(OSError), open(path, "w"):
            escaped(f"wrote {path}")


@behaviour(BESIDE)
def clock():
    with suppress(OSError, PermissionError):
        time.clock_settime(time.CLOCK_REALTIME, 0)
        escaped("set the clock")


@behaviour(BESIDE)
def trace_others():
    for pid in range(1, 400):
        if pid != os.getpid() and os.path.exists(f"/proc/{pid}") and LIBC.ptrace(16, pid, 0, 0) == 0:
            name = open(f"/proc/{pid}/cmdline").read()
            if "aioquic" not in name and "hostile" not in name and "bash" not in name and "endpoint" not in name:
                escaped(f"traced {name}")
            LIBC.ptrace(17, pid, 0, 0)


@behaviour(BESIDE)
def system_calls():
    for name, number in (
        ("bpf", 321),
        ("perf_event_open", 298),
        ("keyctl", 250),
        ("init_module", 175),
        ("kexec_load", 246),
        ("open_by_handle_at", 304),
        ("swapon", 167),
        ("reboot", 169),
        ("sethostname", 170),
        ("userfaultfd", 323),
    ):
        arguments = (0, 0, 0, 0, 0) if name != "reboot" else (0xFEE1DEAD, 672274793, 0, 0, 0)
        if LIBC.syscall(number, *arguments) >= 0:
            escaped(name)


@behaviour(BESIDE)
def environment_of_others():
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with suppress(OSError):
                text = open(f"/proc/{pid}/environ", "rb").read()
                if b"HOME=/root" in text and b"TESTCASE" not in text and len(text) > 30:
                    escaped(f"environment of {pid}")


def main():
    name = os.environ.get("CLIENT_PARAMS") or os.environ.get("SERVER_PARAMS") or ""
    if name not in BEHAVIOURS:
        sys.exit(honest().wait())
    when, function = BEHAVIOURS[name]
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
