"""What an examination of this host finds."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at. `what` is what was found, `mend` the sentence that helps where it is not `ok`."""

    name: str
    ok: bool
    what: str
    mend: str = ""
    blocks: bool = True  # nothing can run without it; else numbers or comfort suffer
