"""Capabilities, mounts, system calls, and other processes."""

import ctypes
import errno
import os
import struct
import subprocess
import time
from contextlib import suppress

from common import BESIDE, LIBC, behaviour, escaped

# What an image does with the files of its guest's host: it plants links among the job's results, and writes to disks.
HOST = """cd /mnt/tmp/out; for name in client.output server.output sim/console.log sim/truth.json
do rm -f $name; ln -s /etc/shadow $name; done
head -n 1 /mnt/etc/shadow; for disk in /mnt/disks/*; do echo changed >> $disk && echo "wrote $disk"; done"""
# Every other error means that the kernel began with the action. ENOSPC: a guest allows no user namespaces.
DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOSPC)


def is_allowed(action):
    """Whether the kernel allows an action. It is done in a process with a single thread: unshare(2) refuses others."""
    pid = os.fork()
    if pid == 0:
        allowed = True
        with suppress(BaseException):
            allowed = action() >= 0 or ctypes.get_errno() not in DENIED
        os._exit(7 if allowed else 0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


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
    for name, action in (
        ("mount", lambda: LIBC.mount(b"none", b"/mnt", b"tmpfs", 0, None)),
        ("hostfs", lambda: LIBC.mount(b"none", b"/mnt", b"hostfs", 0, b"/")),  # the guest's host, in virtual time
        ("new users", lambda: LIBC.unshare(0x10000000)),
        ("new mounts", lambda: LIBC.unshare(0x20000)),
        ("new network", lambda: LIBC.unshare(0x40000000)),
        ("chroot", lambda: LIBC.chroot(b"/")),
    ):
        if is_allowed(action):
            escaped(name)
    for path in (
        "/www/x",
        "/certs/x",
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/fs/cgroup/cgroup.procs",  # version 2; the folder of version 1 is a tmpfs of the container
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/cgroup.procs",
        "/sys/fs/cgroup/devices/devices.allow",
        "/dev/kmsg",
        "/proc/sys/net/core/rmem_max",
    ):
        exists = os.path.exists(path) or not path.startswith(("/sys", "/dev"))  # /dev is a tmpfs of the container
        with suppress(OSError):
            if exists:
                with open(path, "w"):
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
    # BPF_MAP_CREATE of an array with a key and a value of 4 bytes (bpf(2)). The kernel looks at a map's attributes
    # before it looks at the rights of the process, so only a valid request shows whether it is denied.
    array = ctypes.create_string_buffer(struct.pack("=4I", 2, 4, 4, 1), 72)
    valid = {"reboot": (0xFEE1DEAD, 672274793, 0, 0, 0), "bpf": (0, array, len(array), 0, 0)}
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
        arguments = valid.get(name, (0, 0, 0, 0, 0))
        if is_allowed(lambda number=number, arguments=arguments: LIBC.syscall(number, *arguments)):
            escaped(name)


@behaviour(BESIDE)
def environment_of_others():
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with suppress(OSError):
                text = open(f"/proc/{pid}/environ", "rb").read()
                if b"HOME=/root" in text and b"TESTCASE" not in text and len(text) > 30:
                    escaped(f"environment of {pid}")


@behaviour(BESIDE)
def guest_memory():
    if "User Mode Linux" in open("/proc/cpuinfo").read():
        done = subprocess.run(["/hostile/guest-memory", HOST], capture_output=True, text=True)
        print(done.stderr, "exit code", done.returncode)
        if done.stdout or done.returncode != 0:
            escaped(done.stdout or f"the attack does not fit this kernel: exit code {done.returncode}")
