"""Packets as they leave, with any field wrong: the header, the packet protection, and the ACK frame of a space."""

import copy
from itertools import pairwise
from typing import Any

import vocabulary as words
from connection import Space, update_keys
from vocabulary import EARLY, HANDSHAKE, INITIAL, ONE_RTT, Packet

_BITS = {INITIAL: 0xC0, EARLY: 0xD0, HANDSHAKE: 0xE0, ONE_RTT: 0x40}


def seal(packet: Packet, spaces: dict[str, Space], usual: dict[str, Any], *, at_least: int) -> tuple[bytes, int]:
    """The protected packet, padded to `at_least` bytes, and its number. `usual`: dcid, scid, version and token of this
    endpoint's packets."""
    change, space = usual | packet.changes, spaces[packet.space]
    numbers = spaces[ONE_RTT] if packet.space == EARLY else space
    number: int = change.get("number", numbers.number)
    numbers.number = max(numbers.number, number + 1) if number < 1 << 30 else numbers.number + 1
    size = change.get("number_size", 2)
    payload, is_long = packet.payload, packet.space != ONE_RTT
    keys = copy.copy(space.keys.send) if change.get("forged") else space.keys.send  # a forged update changes no keys
    for _ in range(change.get("update", 0)):
        space.old = keys.aead, keys.key_phase
        update_keys(keys)
    first = _BITS[packet.space] & (0xFF if change.get("fixed", 1) else 0xBF) | size - 1
    first |= change.get("reserved", 0) << (2 if is_long else 3)
    if not is_long:
        first |= (space.old[1] if change.get("old") and space.old else keys.key_phase) << 2

    def head(length: int) -> bytes:
        dcid: bytes = change["dcid"]
        if not is_long:
            return bytes([first]) + dcid
        text = bytes([first]) + change["version"].to_bytes(4)
        text += bytes([len(dcid)]) + dcid + bytes([len(change["scid"])]) + change["scid"]
        if packet.space == INITIAL:
            text += words.block(change["token"])
        return text + words.varint(length + change.get("longer", 0), 2)

    missing = max(at_least - len(head(0)) - size - len(payload) - 16, 4 - size - len(payload), 0)
    payload += bytes(missing if payload else 0)
    plain = head(size + len(payload) + 16) + (number & (1 << 8 * size) - 1).to_bytes(size)
    if not payload:  # aioquic seals no empty payload; the sample for header protection needs its bytes
        return _seal_nothing(keys, plain, number), number
    if change.get("old") and space.old:
        sealed = keys.hp.apply(plain, space.old[0].encrypt(payload, plain, number))
    else:
        sealed = keys.encrypt_packet(plain, payload, number)
    return sealed[:-1] + bytes([sealed[-1] ^ 1]) if change.get("forged") else sealed, number


def _seal_nothing(keys: Any, plain: bytes, number: int) -> bytes:
    """A packet without any frame. Its number has 4 bytes, so that the tag is long enough for the sample."""
    size = (plain[0] & 3) + 1
    plain = bytes([plain[0] | 3]) + plain[1:-size] + number.to_bytes(4)
    if plain[0] & 0x80:
        plain = plain[:-6] + words.varint(20, 2) + plain[-4:]
    return bytes(keys.hp.apply(plain, keys.aead.encrypt(b"", plain, number)))


def acknowledge(space: Space) -> bytes:
    """The ACK frame that a space owes; empty without one."""
    if not space.owes_ack:
        return b""
    space.owes_ack = False
    ranges: list[list[int]] = []
    for number in sorted(space.received, reverse=True):
        if ranges and ranges[-1][0] == number + 1:
            ranges[-1][0] = number
        else:
            ranges.append([number, number])
    rest: list[int] = []
    for (low, _), (next_low, next_high) in pairwise(ranges):
        rest += [low - next_high - 2, next_high - next_low]
    return words.ack(ranges[0][1], ranges[0][1] - ranges[0][0], *rest[:40])
