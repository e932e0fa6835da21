"""SSH to a host of its own: who is let in, what is refused, what a lost connection does."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import docker
import pytest
from docker.errors import DockerException

from lab.testbed.hosts import USER, Host
from runner.errors import HostRefusedError, LaneError
from runner.places.links.hosts import HOST_LOST, HostLostError, RemoteEngine, SshConnection, Tunnel

pytestmark = pytest.mark.docker


@pytest.fixture
def tunnel(remote_host: Host) -> Iterator[Tunnel]:
    opened = Tunnel(SshConnection(remote_host.remote()), patience=10.0)
    yield opened
    opened.close()


def _client(tunnel: Tunnel) -> docker.DockerClient:
    return docker.DockerClient(tunnel.url, version="1.41", timeout=20)


def test_the_engine_of_the_host_answers_through_one_connection(remote_host: Host, tunnel: Tunnel) -> None:
    assert _client(tunnel).info()["Name"] == remote_host.name
    answers: list[bool] = []
    callers = [threading.Thread(target=lambda: answers.append(_client(tunnel).ping())) for _ in range(30)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert answers == [True] * 30  # sshd's MaxSessions is 10
    assert tunnel.connection.connects == 1
    assert tunnel.connection.own_address() == remote_host.our_address


def test_another_host_key_is_refused(remote_host: Host) -> None:
    with pytest.raises(
        HostRefusedError, match=r"differs from the key in links\.json: either the host was installed again"
    ):
        SshConnection(remote_host.remote(host_key="other_host_key")).connect()


def test_a_key_that_is_not_authorized_is_refused(remote_host: Host) -> None:
    with pytest.raises(HostRefusedError, match=f"add its public key to ~{USER}/.ssh/authorized_keys there"):
        SshConnection(remote_host.remote(key="other_key")).connect()


def test_no_engine_and_no_ssh_server(remote_host: Host) -> None:
    with pytest.raises(HostLostError, match="start Docker there, put measure into the group docker"):
        SshConnection(remote_host.remote()).open_socket("/run/nobody.sock")
    with pytest.raises(HostLostError, match=r"no SSH server answers at .* port 9"):
        SshConnection(replace(remote_host.remote(), port=9)).connect()
    with pytest.raises(HostRefusedError, match=r"the name nobody\.invalid is not known"):
        SshConnection(replace(remote_host.remote(), address="nobody.invalid")).connect()


def test_forbidden_forwarding_is_told(remote_host: Host) -> None:
    remote_host.stop_ssh()
    remote_host.start_ssh(options="AllowStreamLocalForwarding no")
    try:
        with pytest.raises(HostLostError, match="AllowStreamLocalForwarding yes"):
            SshConnection(remote_host.remote()).open_socket("/run/docker.sock")
    finally:
        remote_host.stop_ssh()
        remote_host.start_ssh()


def test_a_lost_connection_is_made_again(remote_host: Host, tunnel: Tunnel) -> None:
    client = _client(tunnel)
    assert client.ping()
    remote_host.stop_ssh()
    threading.Timer(1.5, remote_host.start_ssh).start()
    began = time.monotonic()
    with pytest.raises((DockerException, OSError)):  # the running call ends at once
        client.ping()
        client.ping()
        raise DockerException("the idle connection was not lost, the next one waited for the host")
    assert _client(tunnel).ping()  # the next call waits until the host is back
    assert time.monotonic() - began > 1.0
    assert tunnel.connection.connects == 2
    assert tunnel.failure is None


def test_a_list_of_what_is_there_survives_the_loss_of_ssh_or_tells_why_it_is_refused(remote_host: Host) -> None:
    engine = RemoteEngine.open(remote_host.remote(), {})
    try:
        containers = engine.labelled_containers(), engine.labelled_volumes()
        remote_host.restart_ssh(away=1.0)
        assert (engine.labelled_containers(), engine.labelled_volumes()) == containers
        remote_host.authorize("other_key")
        remote_host.restart_ssh(away=0.0)
        for ask in (engine.labelled_containers, engine.labelled_volumes):
            with pytest.raises(LaneError, match=r"does not accept the key in links\.json") as refused:
                ask()
            assert refused.value.code == HOST_LOST
    finally:
        remote_host.authorize("key")
        engine.close()


def test_a_closed_tunnel_leaves_nothing(remote_host: Host) -> None:
    opened = Tunnel(SshConnection(remote_host.remote()))
    assert _client(opened).ping()
    opened.close()
    assert not opened._folder.exists()
    with pytest.raises((DockerException, OSError)):
        _client(opened).ping()
