"""Facts about the host that runs jobs."""

import os
import platform
import socket


def host_facts() -> dict[str, str]:
    """The facts about this host for `run.json` or, on a worker, for results."""
    return {
        "name": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
    }
