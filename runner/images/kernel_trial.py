"""A program that tries the kernel features that lanes need. It must be started in a new network namespace.

Its output is one JSON object: for each feature, the reason why it failed; empty when it worked. It needs only the
standard library, because every `run` starts it.
"""

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

_ETH_P_ALL = 3  # linux/if_ether.h


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
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as raw:
        raw.bind(("lo", 0))


def _ipv6() -> None:
    # New namespaces inherit the host's disable_ipv6; lanes reset this setting in the same way.
    Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6").write_text("0")
    _ip("address", "add", "fd00::1/128", "dev", "lo")


if __name__ == "__main__":
    print(json.dumps({"veth": _try(_veth), "packet sockets": _try(_packet_sockets), "IPv6": _try(_ipv6)}))
