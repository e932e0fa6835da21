"""Names of stacks, cases, middleboxes and runs. They are parts of folder names, so one rule decides which names are
valid."""

LONGEST_NAME = 120  # bytes; the folder `<server>_<client>` must stay below the 255 bytes of a file name
LARGEST_ITERATION = 1_000_000


def name_problem(name: str) -> str | None:
    """The reason why `name` can't be the name of a folder; None when `name` is valid. A valid name can't lead to
    another folder, and it has no control characters."""
    if not name:
        return "it is empty"
    if len(name.encode(errors="replace")) > LONGEST_NAME:
        return f"it is longer than {LONGEST_NAME} bytes"
    if name.startswith("."):
        return "it begins with a dot"
    if "/" in name or "\\" in name:
        return "it contains a slash"
    if not name.isprintable():
        return "it contains a character that can't be printed"
    return None


def iteration_problem(iteration: int) -> str | None:
    """The reason why `iteration` is not a valid iteration; None when it is valid."""
    return None if 1 <= iteration <= LARGEST_ITERATION else f"an iteration is a number from 1 to {LARGEST_ITERATION}"
