"""Facts about the host that runs jobs."""

import os
import platform
import socket


def host_facts() -> dict[str, str]:
    """The facts about this host. They are stored in `run.json`; the facts about a worker's host in its results."""
    return {
        "name": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
    }
