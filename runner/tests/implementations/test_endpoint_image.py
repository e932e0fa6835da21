"""The base image of the endpoints in a network that no lane has prepared, as in the public runner."""

import subprocess

import pytest

pytestmark = pytest.mark.docker

WITHOUT_ROUTES = """
ip link add eth0 address 02:00:00:00:00:01 type veth peer name far0 address 02:00:00:00:00:02
ip address add 193.167.0.100/24 dev eth0
ip address add fd00:cafe:cafe::100/64 dev eth0 nodad
ip link set far0 up
ip link set eth0 up
"""
SHOWN = "ip route show dev eth0; ip -6 route show fd00:cafe:cafe::/48; ethtool -k eth0 | grep tx-checks; ls -d /logs/*"


@pytest.fixture(autouse=True)
def _built() -> None:
    if subprocess.run(["docker", "image", "inspect", "bentpipe/endpoint"], capture_output=True, check=False).returncode:
        pytest.skip("bentpipe/endpoint isn't built; ./bentpipe build makes it")


def _shown(commands: str) -> str:
    words = ["docker", "run", "--rm", "--network", "none", "--cap-add", "NET_ADMIN", "--entrypoint", "bash"]
    words += [f"--sysctl=net.ipv6.conf.{which}.disable_ipv6=0" for which in ("all", "default")]
    done = subprocess.run([*words, "bentpipe/endpoint", "-c", commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("shown\n")[2]


def test_setup_makes_the_routes_that_are_missing() -> None:
    once = _shown(f"{WITHOUT_ROUTES} /setup.sh; echo shown; {SHOWN}")
    assert "193.167.0.0/16 via 193.167.0.2 onlink" in once
    assert "193.167.0.0/24" not in once, "traffic to its own subnet passes the simulator, too"
    assert "fd00:cafe:cafe::/48 via fd00:cafe:cafe::2 dev eth0" in once
    assert "tx-checksumming: off" in once
    assert "/logs/qlog" in once
    assert _shown(f"{WITHOUT_ROUTES} /setup.sh; . /setup.sh; echo shown; {SHOWN}") == once


def test_setup_leaves_the_routes_of_a_lane() -> None:
    lane = "ip route add 193.167.0.0/16 via 193.167.0.2; ip -6 route add fd00:cafe:cafe::/48 via fd00:cafe:cafe::2"
    shown = _shown(f"{WITHOUT_ROUTES} {lane}; /setup.sh; echo shown; {SHOWN}")
    assert "193.167.0.0/24" in shown
    assert "193.167.0.0/16 via 193.167.0.2 \n" in shown
    assert "/logs/qlog" in shown
