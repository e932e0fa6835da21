"""The result of a check of this host."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check of this host. `what` is the result, `fix` the sentence that helps when it is not
    `ok`."""

    name: str
    ok: bool
    what: str
    fix: str = ""
    blocks: bool = True  # True: no job can run without it
