"""The folders of the program and of its user, and the version.

In a checkout all of them are the checkout. `pip install` puts the files of the checkout into `runner/shipped`; then the
user's folder is the current one, or BENTPIPE_HOME.
"""

import os
import sys
from pathlib import Path

VERSION = "0.2.0"
SOURCE = Path(__file__).resolve().parents[1]
"""The folder of the packages `runner` and `testcases`."""
_SHIPPED = SOURCE / "runner" / "shipped"
INSTALLED = _SHIPPED.is_dir()
ROOT = _SHIPPED if INSTALLED else SOURCE
"""The program's own files: stacks, simulator, guest, templates. They may be read-only."""
HOME = Path(os.environ.get("BENTPIPE_HOME") or (Path.cwd() if INSTALLED else ROOT)).absolute()
"""The user's files: logs/, the site, links.json, emulated-links.json, night.json."""
LOGS = HOME / "logs"
LEDGER = LOGS / "volume.json"
"""Bytes on real links, over all runs."""
LINKS_FILE = HOME / "links.json"
COMMAND = Path(sys.executable).with_name("bentpipe") if INSTALLED else ROOT / "bentpipe"
IMPLEMENTATIONS = ROOT / "implementations.json"
