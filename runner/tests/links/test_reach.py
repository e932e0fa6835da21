"""The sentence about a server that the client's host can't reach names the fix."""

from runner.model.link import RealLink, RemoteHost
from runner.places.links.reach import AddressCandidate, unreachable

ROOF = RemoteHost(name="roof", user="measure", address="192.0.2.1", port=22, host_key="ssh-ed25519 AAAA", key=None)
LINK = RealLink(name="sky", client=ROOF, server=None, interface="sat0", forward_rate=20_000_000, return_rate=2_000_000)
SILENT = AddressCandidate(address="192.0.2.2", interface="sat0", local="192.0.2.1")


def test_silence_may_be_a_firewall() -> None:
    messages = unreachable(LINK, [SILENT], [])
    assert (
        "roof reaches no address of the server's host at UDP port 443 (192.0.2.2: no answer): open the port" in messages
    )


def test_a_port_that_is_taken_is_no_firewall() -> None:
    text = unreachable(LINK, [SILENT], ["port 443 IPv4 Address already in use"])
    assert "port 443 IPv4 Address already in use): end the program that uses the port there" in text
    assert "firewall" not in text
