"""Explains why goodput and delivery time rank stacks differently: their intervals begin and end at different
packets."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median

from runner.render.cells import Cell
from runner.render.metrics import BY_KEY
from runner.stats.ranking import Place

_KEYS = ("ttlb", "goodput", "first_server_1rtt", "last_server_1rtt")
_LEAST = 0.002  # fraction of a goodput; smaller differences don't count as a different order


def other_order(cells: Sequence[Cell], role: str, places: Sequence[Place]) -> str:
    """Sentences about the stacks of `role` (`server` or `client`) that goodput and delivery time rank differently.
    Empty when both orders agree.

    Delivery time = first 1-RTT packet + interval of goodput − (last 1-RTT packet − last new byte), each as a median
    over the stack's cells. Two stacks can differ in the first term and in the term in brackets. The sentences give the
    term with the larger difference as the reason.
    """
    known = {place.name: values for place in places if (values := _medians(cells, role, place.name)) is not None}
    names = [place.name for place in places if place.name in known]
    swapped = [
        (slow, fast)
        for fast, slow in combinations(names, 2)
        if known[fast]["ttlb"] < known[slow]["ttlb"] and known[slow]["goodput"] > known[fast]["goodput"] * (1 + _LEAST)
    ]
    if not swapped:
        return ""
    order = sorted(names, key=lambda name: -known[name]["goodput"])
    slow, fast = max(swapped, key=lambda pair: known[pair[0]]["goodput"] / known[pair[1]]["goodput"])
    return f"By goodput the order of the {role}s is different: {', '.join(order)}. {_why(known, slow, fast)}"


def _medians(cells: Sequence[Cell], role: str, name: str) -> dict[str, float] | None:
    chosen = [cell for cell in cells if getattr(cell, role) == name and not cell.outdated]
    medians = {key: [cell.summaries[key].median for cell in chosen if key in cell.summaries] for key in _KEYS}
    return {key: median(values) for key, values in medians.items()} if all(medians.values()) else None


def _why(known: Mapping[str, Mapping[str, float]], slow: str, fast: str) -> str:
    """A sentence that explains why `slow`, which delivers later, has more goodput than `fast`."""
    begin = {name: known[name]["first_server_1rtt"] for name in (slow, fast)}
    tail = {name: known[name]["last_server_1rtt"] - known[name]["ttlb"] for name in (slow, fast)}
    goodput = BY_KEY["goodput"]
    has = f"{slow} has {goodput.text(known[slow]['goodput'])} and {fast} {goodput.text(known[fast]['goodput'])}"
    if begin[slow] - begin[fast] >= tail[fast] - tail[slow]:
        return (
            f"{has}, although {fast} delivers earlier: goodput counts only from the server's first 1-RTT packet on, "
            f"which comes after {begin[slow]:.2f} s with {slow} and after {begin[fast]:.2f} s with {fast}."
        )
    return (
        f"{has}, although {fast} delivers earlier: goodput counts up to the server's last 1-RTT packet, which comes "
        f"{tail[fast]:.2f} s after the last new byte with {fast} and {tail[slow]:.2f} s after it with {slow}."
    )
