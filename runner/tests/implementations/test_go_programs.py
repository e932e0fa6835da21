"""The Go tests of the QUIC proxies, in their builder image."""

import subprocess
from pathlib import Path

import pytest

from runner.catalog import ROOT

FOLDERS = sorted(script.parent for script in (ROOT / "implementations").glob("*/test"))


@pytest.mark.docker
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_go_vet_and_go_test(folder: Path) -> None:
    built = subprocess.run(["docker", "image", "inspect", "bentpipe/carrier"], capture_output=True, check=False)
    if built.returncode != 0:
        pytest.skip("bentpipe/carrier isn't built; ./bentpipe build qpep makes it")
    done = subprocess.run([folder / "test"], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
