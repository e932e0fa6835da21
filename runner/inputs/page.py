"""The reference page. It has as many objects of each kind as ETSI's Kepler page, with the same total size, but other
content.

It has 75 objects with 815,804 B: one document, 9 style sheets, 32 texts in frames, 32 images, one blob. The total size
of each kind and the sizes of the largest texts are as in the original; the other sizes are chosen here. The content
follows from a seed and can't be compressed.
"""

import base64
import hashlib
import struct
import zlib
from collections.abc import Sequence
from itertools import cycle

DOCUMENT = 17_323
STYLES = (10_000, 10_000, 10_000, 6_204, 500, 500, 500, 500, 500)
_TEXTS_LEFT = 446_613 - 115_600 - 97_100 - 61_000
TEXTS = (115_600, 97_100, 61_000, *(_TEXTS_LEFT // 29 + (1 if at < _TEXTS_LEFT % 29 else 0) for at in range(29)))
IMAGES = (46_000, 46_000, 46_000, *(1_600,) * 27, 966, 966)
BLOB = 130_032
OBJECTS = 1 + len(STYLES) + len(TEXTS) + len(IMAGES) + 1
TOTAL = DOCUMENT + sum(STYLES) + sum(TEXTS) + sum(IMAGES) + BLOB
INDEX = "index.html"


def names(seed: int) -> dict[str, int]:
    """Name → size in bytes of every object, the document first. Names follow from `seed`, so no cache has them."""
    mark = hashlib.shake_256(f"page/{seed}".encode()).hexdigest(4)
    sizes_by_name = {f"{mark}-{INDEX}": DOCUMENT}
    for kind, suffix, sizes in (
        ("style", "css", STYLES),
        ("text", "txt", TEXTS),
        ("image", "png", IMAGES),
        ("blob", "png", (BLOB,)),
    ):
        sizes_by_name |= {f"{mark}-{kind}{number}.{suffix}": size for number, size in enumerate(sizes, start=1)}
    return sizes_by_name


def objects(seed: int, places: Sequence[str] = ("",)) -> dict[str, bytes]:
    """Name → content of every object. The document takes the other objects from `places` in turn; "" is the origin of
    the document."""
    listed = names(seed)
    document = next(iter(listed))
    made = {name: _content(name, size, seed) for name, size in listed.items() if name != document}
    addresses = [place + name for place, name in zip(cycle(places), made, strict=False)]
    return {document: _document(addresses, seed)} | made


def _noise(what: str, size: int, seed: int) -> bytes:
    return hashlib.shake_256(f"{seed}/{what}".encode()).digest(size)


def _words(what: str, size: int, seed: int) -> bytes:
    """Text of `size` bytes, in lines."""
    text = base64.urlsafe_b64encode(_noise(what, size, seed))
    return b"\n".join(text[at : at + 79] for at in range(0, size, 79))[:size]


def _content(name: str, size: int, seed: int) -> bytes:
    if name.endswith(".css"):
        head, tail = f"p.{name.partition('-')[2].removesuffix('.css')} {{ margin: 0 }}\n/*".encode(), b"*/"
        return head + _words(name, size - len(head) - len(tail), seed) + tail
    return _image(name, size, seed) if name.endswith(".png") else _words(name, size, seed)


def _image(name: str, size: int, seed: int) -> bytes:
    """A PNG of 8 × 8 grey dots with `size` bytes. Most of its bytes are in a chunk that no browser shows."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    dots = _chunk(b"IDAT", zlib.compress(b"".join(b"\0" + _noise(name, 8, seed) for _ in range(8))))
    ends = b"\x89PNG\r\n\x1a\n", _chunk(b"IEND", b"")
    left = size - len(header) - len(dots) - len(ends[0]) - len(ends[1]) - 12
    return ends[0] + header + dots + _chunk(b"noIs", _noise(name, left, seed)) + ends[1]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _document(others: list[str], seed: int) -> bytes:
    """The document: references to all other objects, and text that a browser can paint without them."""
    styles = "".join(f'<link rel="stylesheet" href="{name}">\n' for name in others if name.endswith(".css"))
    images = "".join(f'<img src="{name}" width="32" height="32">\n' for name in others if name.endswith(".png"))
    frames = "".join(f'<iframe src="{name}" height="80"></iframe>\n' for name in others if name.endswith(".txt"))
    title = "<meta charset='utf-8'><title>reference</title>"
    head = f"<!doctype html>\n<html lang='en'><head>{title}\n{styles}</head><body>\n"
    body = f"<h1>Reference page</h1>\n{images}{frames}<p>"
    tail = "</p>\n</body></html>\n"
    left = DOCUMENT - len(head) - len(body) - len(tail)
    return (head + body).encode() + _words(INDEX, left, seed) + tail.encode()
