"""Invitations: their content, their end, and the refusal of peers without an invitation."""

import socket
import ssl
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.places.workers.worker import Address, Invitation, accepted, invitation_folder

ADDRESS = Address(host="runner.example", port=8786)


def test_an_invitation_goes_to_another_host_as_one_word(tmp_path: Path) -> None:
    made = Invitation.make(tmp_path / "made", days=1)
    assert made.token.split() == [made.token]
    taken = accepted(tmp_path / "there", ADDRESS, f"{made.token}\n")
    for name in ("ca.pem", "member.pem", "member.key"):
        assert (taken.folder / name).read_bytes() == (made.folder / name).read_bytes()
    assert (taken.folder / "member.key").stat().st_mode & 0o777 == 0o600
    assert taken.folder.stat().st_mode & 0o777 == 0o700
    assert accepted(tmp_path / "there", ADDRESS, None).token == made.token


def test_the_key_of_the_authority_is_kept_nowhere(tmp_path: Path) -> None:
    made = Invitation.make(tmp_path / "made", days=1)
    assert sorted(path.name for path in made.folder.iterdir()) == ["ca.pem", "member.key", "member.pem", "until"]


def test_an_invitation_ends(tmp_path: Path) -> None:
    Invitation.make(invitation_folder(tmp_path, ADDRESS), days=-0.01)
    with pytest.raises(UsageError, match=r"tls://runner.example:8786 ended at"):
        accepted(tmp_path, ADDRESS, None)


@pytest.mark.parametrize("token", ["", "hello", "e30=", urlsafe_b64encode(b"\x78\x9c" * 40).decode(), "ä"])
def test_what_is_no_invitation_is_refused_in_one_sentence(tmp_path: Path, token: str) -> None:
    with pytest.raises(UsageError, match="worker invite"):
        accepted(tmp_path, ADDRESS, token or None)


@pytest.mark.parametrize(
    "text",
    ["host:1", "tcp://host:1", "tls://", "tls://host:99999", "tls://host:x", "tls://host/path", "tls://host:1?a"],
)
def test_what_is_no_address_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="write tls://HOST"):
        Address.parse(text)


def test_an_address_has_a_port_of_its_own_accord() -> None:
    assert str(Address.parse("tls://[2001:db8::1]")) == "tls://[2001:db8::1]:8786"


def context(invitation: Invitation | None, authority: Invitation) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=authority.folder / "ca.pem")
    made.check_hostname = False
    if invitation is not None:
        made.load_cert_chain(invitation.folder / "member.pem", invitation.folder / "member.key")
    return made


def answers(port: int, with_: ssl.SSLContext) -> bool:
    """True when the scheduler sends a peer its first bytes."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            with_.wrap_socket(plain) as encrypted,
        ):
            return bool(encrypted.recv(1))
    except (ssl.SSLError, ConnectionError):
        return False


def listening() -> set[tuple[str, int]]:
    """The listening TCP sockets: address in hexadecimal digits, and port."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {(fields[1].split(":")[0], int(fields[1].split(":")[1], 16)) for fields in lines if fields[3] == "0A"}


def inodes_of(pid: int) -> set[str]:
    return {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}


def test_only_members_get_in_and_no_other_port_is_open_to_the_network(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    from runner.tests.workers.recorded import processes  # noqa: PLC0415
    from runner.tests.workers.test_workers import wait_until  # noqa: PLC0415 - needs Dask

    before = listening()
    other = Invitation.make(tmp_path / "other", days=1)
    with processes(tmp_path / "processes") as campaign:
        campaign.start("schedule")
        wait_until(lambda: any(port == campaign.port for _, port in listening()))
        assert answers(campaign.port, context(campaign.invitation, campaign.invitation))
        assert not answers(campaign.port, context(None, campaign.invitation))
        assert not answers(campaign.port, context(other, campaign.invitation))
        everywhere = {port for address, port in listening() - before if int(address[-8:], 16) & 255 != 127}
        assert everywhere <= {campaign.port} | ports_of_others(campaign.started[0].pid)


def ports_of_others(pid: int) -> set[int]:
    """Ports that other processes of this host opened in the meantime."""
    mine = {name.removeprefix("socket:[").rstrip("]") for name in map(str, inodes_of(pid)) if name.startswith("socket")}
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {int(fields[1].split(":")[1], 16) for fields in lines if fields[3] == "0A" and fields[9] not in mine}
