"""Key logs with missing or wrong parts: a list of chosen cuts, and a seeded generator of random cuts."""

import re
from collections.abc import Callable, Mapping
from random import Random

Lines = list[str]
Cut = Callable[[Lines], Lines]

_SECRET = re.compile(r"([A-Z_0-9]+) ([0-9a-fA-F]{64}) ([0-9a-fA-F]{64}|[0-9a-fA-F]{96})")
Secret = tuple[str, str, str]
"""label, client random, secret, in lower-case hexadecimal"""


def secrets(lines: Lines) -> dict[Secret, None]:
    """The complete secrets of a key log, in its order."""
    match = (_SECRET.fullmatch(line.strip()) for line in lines)
    return dict.fromkeys((secret[1], secret[2].lower(), secret[3].lower()) for secret in match if secret)


def _without(drop: Callable[[Secret], bool]) -> Cut:
    def cut(lines: Lines) -> Lines:
        return [line for line in lines if not any(drop(secret) for secret in secrets([line]))]

    return cut


def _label(label: str) -> Cut:
    return _without(lambda secret: secret[0] == label)


def _one_connection(last: bool) -> Cut:
    def cut(lines: Lines) -> Lines:
        randoms = [secret[1] for secret in secrets(lines)]
        chosen = randoms[-1 if last else 0] if randoms else ""
        return _without(lambda secret: secret[1] == chosen)(lines)

    return cut


CUTS: Mapping[str, Cut] = {
    "nothing but a comment": lambda _: ["# a key log"],
    "handshake secrets alone": _without(lambda secret: "HANDSHAKE" not in secret[0]),
    "traffic secrets alone": _without(lambda secret: "HANDSHAKE" in secret[0]),
    "no server traffic secret": _label("SERVER_TRAFFIC_SECRET_0"),
    "no client traffic secret": _label("CLIENT_TRAFFIC_SECRET_0"),
    "no server handshake secret": _label("SERVER_HANDSHAKE_TRAFFIC_SECRET"),
    "no client handshake secret": _label("CLIENT_HANDSHAKE_TRAFFIC_SECRET"),
    "first connection missing": _one_connection(last=False),
    "last connection missing": _one_connection(last=True),
    "no early secret": _label("CLIENT_EARLY_TRAFFIC_SECRET"),
}


def mutated(rng: Random, lines: Lines) -> Lines:
    """The key log after one to four random changes."""
    lines = list(lines)
    for _ in range(rng.randint(1, 4)):
        if lines:
            rng.choice(_CHANGES)(rng, lines)
    return lines


def _delete(rng: Random, lines: Lines) -> None:
    del lines[rng.randrange(len(lines))]


def _delete_label(rng: Random, lines: Lines) -> None:
    label = rng.choice(lines).partition(" ")[0]
    lines[:] = [line for line in lines if not line.startswith(label + " ")]


def _flip_digit(rng: Random, lines: Lines) -> None:
    """Change one hexadecimal digit of the random or of the secret."""
    at = rng.randrange(len(lines))
    places = [number for number, letter in enumerate(lines[at]) if letter in "0123456789abcdef"]
    if places:
        place = rng.choice(places)
        digit = rng.choice([digit for digit in "0123456789abcdef" if digit != lines[at][place]])
        lines[at] = lines[at][:place] + digit + lines[at][place + 1 :]


def _cut_line(rng: Random, lines: Lines) -> None:
    at = rng.randrange(len(lines))
    lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]


def _cut_file(rng: Random, lines: Lines) -> None:
    del lines[rng.randrange(len(lines)) :]


def _swap_labels(rng: Random, lines: Lines) -> None:
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    first, second = lines[at].partition(" "), lines[other].partition(" ")
    lines[at], lines[other] = second[0] + first[1] + first[2], first[0] + second[1] + second[2]


def _comment_out(rng: Random, lines: Lines) -> None:
    at = rng.randrange(len(lines))
    lines[at] = "#" + lines[at]


def _wrong_one_first(rng: Random, lines: Lines) -> None:
    """Insert a line with the same label and session and a wrong secret before the right line. No secret is missing."""
    at = rng.randrange(len(lines))
    if match := _SECRET.fullmatch(lines[at]):
        lines.insert(at, f"{match[1]} {match[2]} {rng.randbytes(len(match[3]) // 2).hex()}")


def _upper_case(rng: Random, lines: Lines) -> None:
    at = rng.randrange(len(lines))
    label, _, rest = lines[at].partition(" ")
    lines[at] = f"{label} {rest.upper()}"


def _shuffle(rng: Random, lines: Lines) -> None:
    rng.shuffle(lines)


def _garbage(rng: Random, lines: Lines) -> None:
    lines.insert(rng.randrange(len(lines) + 1), rng.randbytes(40).decode("latin-1").replace("\n", " "))


_CHANGES: tuple[Callable[[Random, Lines], None], ...] = (
    _delete,
    _delete,
    _delete_label,
    _flip_digit,
    _cut_line,
    _cut_file,
    _swap_labels,
    _comment_out,
    _wrong_one_first,
    _upper_case,
    _shuffle,
    _garbage,
)
