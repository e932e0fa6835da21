"""An endpoint of aioquic that tells a lie in its ACK frames. The variable LIE names the lie."""

import os
import runpy
import sys

import lies  # noqa: F401 - registers its behaviours
from common import BEHAVIOURS, ROLE

_ENDPOINT = "/opt/aioquic/endpoint"

BEHAVIOURS[os.environ["LIE"]][1]()
sys.path.insert(0, _ENDPOINT)
runpy.run_path(f"{_ENDPOINT}/{ROLE}.py", run_name="__main__")
