"""The Go tests of the QUIC proxies, in their builder image."""

import subprocess

import pytest

from runner.paths import ROOT


@pytest.mark.docker
def test_go_vet_and_go_test() -> None:
    built = subprocess.run(["docker", "image", "inspect", "bentpipe/carrier"], capture_output=True, check=False)
    if built.returncode != 0:
        pytest.skip("bentpipe/carrier isn't built; ./bentpipe build qpep makes it")
    script = ROOT / "implementations" / "_carrier" / "test"
    done = subprocess.run([script], capture_output=True, text=True, check=False, timeout=600)
    failures = [line for line in done.stdout.splitlines() if "FAIL" in line or "_test.go" in line or "panic" in line]
    assert done.returncode == 0, "\n".join(failures) + done.stderr[-4000:]
