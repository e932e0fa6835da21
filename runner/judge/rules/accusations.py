"""Closes whose error accuses the peer of something that it did not do, as the packets show."""

from collections.abc import Set

from runner.decode.columns import SERVER
from runner.decode.crypto_messages import Message, offered
from runner.decode.wire import NAMES_OF_FRAMES
from runner.judge.rules.handshake_rules import crypto
from runner.judge.rules.side import EARLY, HANDSHAKE, INITIAL, ONE_RTT, Side
from runner.model.facts import PacketPlace
from runner.model.rules import BY_ID, TRANSPORT, error_name

_CONTENT = tuple(set(NAMES_OF_FRAMES) - {"padding", "ping"})
_NOT_CHECKED = ("min_ack_delay", "loss_bits")  # transport parameters of drafts, whose values no rule checks
_RESERVED, _FIRST_RESERVED = 31, 27  # parameters that an endpoint must ignore (RFC 9000 §18.1)
_HANDSHAKE_FAILURE = 0x100 + 40  # RFC 8446 §6.2
_AES_128 = 0x1301  # TLS_AES_128_GCM_SHA256
_MANDATORY = {10: {0x0017}, 13: {0x0403, 0x0804}}
"""Extension of a ClientHello → what every server knows, like the suite (RFC 8446 §9.1): secp256r1, and the signatures
ecdsa_secp256r1_sha256 and rsa_pss_rsae_sha256."""


def unfounded(side: Side, peer: Side, broken: Set[str]) -> PacketPlace | None:
    """The packet with the endpoint's close, when its error accuses the peer wrongly; None when it has no close, or the
    packets don't show this. `broken`: ids of the rules that the peer broke in this connection."""
    closes = side.frames("connection_close")
    if not len(closes) or not peer.whole or not side.peer_read:
        return None
    frames = side.capture.frames
    packet, code = int(frames["packet"][closes[0]]), int(frames["value"][closes[0]])
    if any(BY_ID[rule].answer or error_name(code) in BY_ID[rule].seldom for rule in broken):
        return None
    if code == TRANSPORT["TRANSPORT_PARAMETER_ERROR"] and _has_right_parameters(side, peer, packet):
        return side.scope.place(side.capture.vantage, packet)
    if code == _HANDSHAKE_FAILURE and _offers_enough(side, peer, packet):
        return side.scope.place(side.capture.vantage, packet)
    if code == TRANSPORT["INVALID_TOKEN"] or not _has_only_pinged(side, peer, packet):
        return None
    return side.scope.place(side.capture.vantage, packet)


def _has_only_pinged(side: Side, peer: Side, packet: int) -> bool:
    """Whether all that the endpoint could read before this packet is PING and PADDING, which every packet may contain
    (RFC 9000 §12.4), although a client begins with CRYPTO data (§17.2.2)."""
    arrived = side.sent_by_peer[side.sent_by_peer < packet]
    read = side.got[side.got < packet]
    first = peer.of_type(INITIAL)[:1]
    begins = peer.capture.frames["packet"][peer.frames("crypto")]
    return (
        len(read) > 0
        and all(side.capture.type[each] in (INITIAL, EARLY, HANDSHAKE, ONE_RTT) for each in arrived)
        and not (side.capture.frames["packet"][side.frames(*_CONTENT, got=True)] < packet).any()
        and (not peer.is_client or (len(first) > 0 and first[0] in begins))
    )


def _has_right_parameters(side: Side, peer: Side, packet: int) -> bool:
    """Whether the peer's transport parameters had arrived, and the rules check each of them and compare them with the
    connection IDs of the peer's packets. They do this in part only after Version Negotiation or Retry, with several
    source connection IDs, and for a server whose limits a client remembers."""
    kind = Message.CLIENT_HELLO if peer.is_client else Message.ENCRYPTED_EXTENSIONS
    hello, row = side.message(kind, peer.sender), side.row
    names = side.peer_parameters
    if hello is None or row is None or int(hello["packet"]) > packet or not names:
        return False
    unknown = [int(name, 16) for name in names if name.startswith("0x")]
    return (
        not any(name in names for name in _NOT_CHECKED)
        and all(number % _RESERVED == _FIRST_RESERVED for number in unknown)
        and not row["retry"]
        and not side.scope.count(SERVER, "version_negotiation")
        and (peer.is_client or not row["early_data_offered"])
        and len(peer.ids("scid", peer.of_type(INITIAL))) == 1
    )


def _offers_enough(side: Side, peer: Side, packet: int) -> bool:
    """Whether a ClientHello had arrived that offers all that TLS 1.3 makes mandatory. A server asks for another key
    share by HelloRetryRequest (RFC 8446 §4.1.1)."""
    hello, row = side.message(Message.CLIENT_HELLO, peer.sender), peer.row
    if not peer.is_client or hello is None or int(hello["packet"]) > packet or row is None:
        return False
    data = crypto(peer, peer.of_type(INITIAL))
    body = bytes(data.get(at, 0) for at in range(4, max(data, default=0) + 1))
    return (
        side.message(Message.SERVER_HELLO, side.sender) is None
        and bool(hello.get("alpn"))
        and _AES_128 in (row["offered_suites"] or ())
        and all(numbers <= set(offered(body, kind)) for kind, numbers in _MANDATORY.items())
    )
