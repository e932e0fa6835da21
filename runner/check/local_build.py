"""A build on the user's host as an endpoint, without an image: its container has the host's files, read-only."""

import os
from pathlib import Path

from runner.engine.engine import socket_path
from runner.errors import UsageError
from runner.lanes.request import EndpointSpec

ENDPOINT_IMAGE = "bentpipe/endpoint"
# Folders of / that belong to the kernel, to the container or to the contract.
_NOT_SHARED = frozenset(
    ("proc", "sys", "dev", "run", "tmp", "var", "boot", "lost+found", "logs", "www", "certs", "downloads")
)
_WIRE_NAMES = (
    "handshake transfer multiconnect chacha20 retry resumption zerortt http3 keyupdate ecn v2 connectionmigration "
    "versionnegotiation"
)
# Does the work of /entrypoint.sh and /run_endpoint.sh of an image. It exits with 127 for an unknown case.
_SCRIPT = """
case " $KNOWN_CASES " in *" $TESTCASE "*) ;; *) exit 127 ;; esac
/setup.sh
mkdir -p "$QLOGDIR"
if [ "$ROLE" = client ]; then /wait-for-it.sh sim:57832 -s -t 30 || exit 1; fi
cd "$FOLDER"
exec /bin/bash -c "exec $COMMAND"
"""


def local_build(command: str, *, root: Path = Path("/"), folder: Path | None = None) -> EndpointSpec:
    """An endpoint that runs `command` in a shell, in `folder` (default: here), with the contract's environment.

    The host's programs, libraries and files have the same paths in the container, read-only; /tmp belongs to the
    container. Raises UsageError when the engine is on another host.
    """
    if socket_path() is None:
        raise UsageError("--client and --server need a Docker Engine on this host: DOCKER_HOST names another host.")
    here = (folder or Path.cwd()).resolve()
    shared = [
        entry
        for entry in sorted(root.iterdir())
        if entry.is_dir() and not entry.is_symlink() and entry.name not in _NOT_SHARED
    ]
    if not any(here.is_relative_to(entry) for entry in shared):
        shared.append(here)
    return EndpointSpec(
        image=ENDPOINT_IMAGE,
        entrypoint=("/bin/bash", "-c", _SCRIPT),
        environment={
            "KNOWN_CASES": _WIRE_NAMES,
            "COMMAND": command,
            "FOLDER": str(here),
            "PATH": os.environ.get("PATH", os.defpath),
        },
        binds=tuple(f"{entry}:{entry}:ro" for entry in shared),
    )
