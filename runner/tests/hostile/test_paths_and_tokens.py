"""The hostile peer against aioquic in memory: addresses, paths, tokens, connection IDs and stateless resets."""

import os
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.retry import QuicRetryTokenHandler

from runner.check.flight_verdicts import FAILED, INAPPLICABLE, NOTE, PASSED
from runner.model.stack import Role
from runner.tests.hostile import in_memory
from runner.tests.hostile.in_memory import ADDRESS, Polite, meet, one


class _Generous(QuicConnection):
    """Sends any address as much as it likes, and answers challenges on its first path."""

    def _find_network_path(self, addr: Any) -> Any:
        path = super()._find_network_path(addr)
        path.is_validated = True
        return path

    def _handle_path_challenge_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        context.network_path = self._network_paths[-1]
        super()._handle_path_challenge_frame(context, frame_type, buf)


@pytest.mark.parametrize("name", ["amplification-silent-client", "amplification-junk", "path-probe-from-other-port"])
def test_a_server_that_answers_too_much_or_elsewhere_fails(tmp_path: Path, name: str) -> None:
    assert one(meet(name, Role.SERVER, tmp_path)).verdict == PASSED
    result = one(meet(name, Role.SERVER, tmp_path, connection=_Generous))
    assert result.verdict == FAILED, result


def test_what_another_connection_sent_from_the_same_port_allows_nothing(tmp_path: Path) -> None:
    name, wrong = "amplification-silent-client", _Generous
    assert one(meet(name, Role.SERVER, tmp_path, connection=wrong, earlier=bytes(60_000))).verdict == FAILED


class _Trusting(QuicRetryTokenHandler):
    """Takes every token."""

    _odcid = b""

    def create_token(self, *, original_destination_connection_id: bytes, **others: Any) -> bytes:
        self._odcid = original_destination_connection_id
        return super().create_token(original_destination_connection_id=self._odcid, **others)

    def validate_token(self, **_: Any) -> bytes:
        return self._odcid


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("retry-token-from-other-port", NOTE),
        ("retry-token-of-other-connection", NOTE),
        ("retry-token-of-other-server", FAILED),
    ],
)
def test_a_server_that_takes_the_token_of_another_client_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, verdict: str
) -> None:
    right = one(meet(name, Role.SERVER, tmp_path))
    assert (right.verdict, right.code) == (PASSED, "INVALID_TOKEN"), right
    monkeypatch.setattr(in_memory, "QuicRetryTokenHandler", _Trusting)
    for connection in (QuicConnection, Polite):  # the second answers our close
        wrong = one(meet(name, Role.SERVER, tmp_path, connection=connection))
        assert (wrong.verdict, wrong.accepted) == (verdict, True), wrong


class _Giving(QuicConnection):
    """Gives tokens for later connections."""

    def _write_handshake_done_frame(self, builder: Any) -> None:
        super()._write_handshake_done_frame(builder)
        builder.start_frame(QuicFrameType.NEW_TOKEN, capacity=9).push_bytes(b"\x08" + os.urandom(8))


class _Accepting(_Giving, _Generous):
    """Takes every token as a proof of the address."""


@pytest.mark.parametrize(("name", "verdict"), [("new-token-from-other-address", FAILED), ("new-token-twice", NOTE)])
def test_a_token_of_another_address_lifts_no_limit(tmp_path: Path, name: str, verdict: str) -> None:
    assert one(meet(name, Role.SERVER, tmp_path)).verdict == INAPPLICABLE
    assert one(meet(name, Role.SERVER, tmp_path, connection=_Giving)).verdict == PASSED
    assert one(meet(name, Role.SERVER, tmp_path, connection=_Accepting)).verdict == verdict


class _Strict(QuicConnection):
    """Takes PATH_RESPONSE only on the path of its challenge."""

    def _handle_path_response_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        if context.network_path.local_challenges:
            super()._handle_path_response_frame(context, frame_type, buf)
        else:
            buf.pull_bytes(8)


def test_a_response_on_any_path_validates_the_new_path(tmp_path: Path) -> None:
    name = "path-response-on-other-path"
    assert one(meet(name, Role.SERVER, tmp_path)).verdict == PASSED
    assert one(meet(name, Role.SERVER, tmp_path, connection=_Strict)).verdict == FAILED


class _Padding(QuicConnection):
    """Sends 1200 bytes for a challenge, however small its datagram was."""

    def _handle_path_challenge_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        super()._handle_path_challenge_frame(context, frame_type, buf)
        context.network_path.is_validated = True

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        sent = super().datagrams_to_send(now)
        return [(data + bytes(1200 - len(data)) if to[1] != ADDRESS[1] else data, to) for data, to in sent]


class _Measuring(QuicConnection):
    """Sends 1472 bytes to the port of a probe once its own challenge there was answered, which validates the port."""

    _probe: bytes = b""

    def _handle_path_response_frame(self, *args: Any) -> None:
        super()._handle_path_response_frame(*args)
        self._probe = bytes(1472)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        sent = super().datagrams_to_send(now)
        sent += [(self._probe, (ADDRESS[0], ADDRESS[1] + 1))] if self._probe else []
        self._probe = b""
        return sent


class _Answering(QuicConnection):
    """Sends 43 bytes to the port of a stranger."""

    owed = (bytes(43), (ADDRESS[0], ADDRESS[1] + 1))

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        return [self.owed, *super().datagrams_to_send(now)] if now < 0.01 else super().datagrams_to_send(now)


@pytest.mark.parametrize("name", ["unknown-connection-id", "negotiation-from-client"])
def test_an_answer_to_a_stranger_is_smaller_or_none(tmp_path: Path, name: str) -> None:
    assert one(meet(name, Role.SERVER, tmp_path)).verdict == PASSED
    assert one(meet(name, Role.SERVER, tmp_path, connection=_Answering)).verdict == FAILED


class _Draining(QuicConnection):
    """Knows its peer's stateless reset."""

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        token = self._peer_cid.stateless_reset_token
        self.drained = getattr(self, "drained", False) or (bool(token) and data.endswith(token))
        if not self.drained:
            super().receive_datagram(data, addr, now)


def test_a_client_that_answers_after_a_stateless_reset_fails(tmp_path: Path) -> None:
    """aioquic 1.7.2 compares no token."""
    result = one(meet("stateless-reset", Role.CLIENT, tmp_path))
    assert (result.verdict, result.seen) == (FAILED, "it sent packets, exit code 1"), result
    assert one(meet("stateless-reset", Role.CLIENT, tmp_path, connection=_Draining)).verdict == PASSED


class _Clinging(QuicConnection):
    """Keeps the connection ID that its peer retired."""

    def _retire_peer_cid(self, *_: Any) -> None:
        pass

    def _consume_peer_cid(self) -> None:
        pass


def test_a_retired_connection_id_is_not_used_again(tmp_path: Path) -> None:
    assert one(meet("connection-ids-all-retired", Role.SERVER, tmp_path, connection=_Clinging)).verdict == FAILED


def test_an_answer_to_a_small_probe_is_small(tmp_path: Path) -> None:
    for right in (QuicConnection, _Measuring):
        assert one(meet("path-probe-small", Role.SERVER, tmp_path, connection=right)).verdict == PASSED
    result = one(meet("path-probe-small", Role.SERVER, tmp_path, connection=_Padding))
    assert (result.verdict, result.seen.endswith("bytes for 36")) == (FAILED, True), result
