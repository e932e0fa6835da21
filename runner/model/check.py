"""What an examination of this host finds."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check of this host. `what` is the result, `mend` the sentence that helps when it is not
    `ok`."""

    name: str
    ok: bool
    what: str
    mend: str = ""
    blocks: bool = True  # nothing can run without it; else numbers or comfort suffer
