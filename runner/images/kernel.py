"""Tries the kernel features that lanes need, in a temporary network namespace. `python -m runner.images.kernel` runs
the trial; it must be started in a new network namespace.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from runner.model.run import Check
from runner.paths import SOURCE

ETH_P_ALL = 3  # linux/if_ether.h

_TRIAL_SECONDS = 20.0
_FIXES = {
    "veth": "Run `sudo modprobe veth`, or boot a kernel with CONFIG_VETH: lanes are wired with veth pairs.",
    "packet sockets": "Boot a kernel with CONFIG_PACKET: the simulator and the captures need AF_PACKET.",
    "IPv6": "Boot without ipv6.disable=1: the endpoint contract gives every endpoint an IPv6 address.",
}


def examine_kernel() -> list[Check]:
    """Try veth, packet sockets and IPv6. Without root, this runs in a user namespace, if the host allows it."""
    if shutil.which("unshare") is None:
        fix = "Run `sudo apt-get install util-linux`."
        return [Check(name="network namespaces", ok=False, what="there is no unshare command", fix=fix)]
    if shutil.which("ip") is None:
        return [Check(name="kernel", ok=True, what="not tried: there is no ip command (package iproute2)")]
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    try:
        done = subprocess.run(
            ["unshare", *user, "--net", sys.executable, "-m", "runner.images.kernel"],
            cwd=SOURCE,
            env=os.environ | {"PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        late = f"not known: this host is so busy that the trial did not end within {_TRIAL_SECONDS:.0f} s"
        return [Check(name="kernel", ok=True, what=late)]
    if done.returncode != 0 and user:
        return [Check(name="kernel", ok=True, what="not tried: this user may not make namespaces, root may")]
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        fix = "Run as root on the host itself, or in a container that may make namespaces (--privileged)."
        return [Check(name="network namespaces", ok=False, what=f"can't be made ({reason[0]})", fix=fix)]
    failures: dict[str, str] = json.loads(done.stdout)
    return [Check(name=n, ok=not why, what=why or "works", fix=_FIXES[n]) for n, why in failures.items()]


def _try(trial: Callable[[], None]) -> str:
    """The reason why `trial` failed; empty when it worked."""
    try:
        trial()
    except subprocess.CalledProcessError as error:
        return str(error.stderr).strip()
    except OSError as error:
        return str(error)
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)


def _veth() -> None:
    _ip("link", "add", "trial0", "type", "veth", "peer", "name", "trial1")


def _packet_sockets() -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as raw:
        raw.bind(("lo", 0))


def _ipv6() -> None:
    # New namespaces inherit the host's disable_ipv6; lanes reset this setting in the same way.
    Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6").write_text("0")
    _ip("address", "add", "fd00::1/128", "dev", "lo")


def _trial() -> dict[str, str]:
    return {"veth": _try(_veth), "packet sockets": _try(_packet_sockets), "IPv6": _try(_ipv6)}


if __name__ == "__main__":
    print(json.dumps(_trial()))
