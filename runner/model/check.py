"""The result of one check of this host."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check of this host. `what`: the result in words. `fix`: a sentence with the remedy when the
    check is not `ok`."""

    name: str
    ok: bool
    what: str
    fix: str = ""
    blocks: bool = True  # True: no job can run when this check fails
