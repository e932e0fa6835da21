"""Makes mutants: takes recordings in turn until the rule can be broken in one of them."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from runner.tests.mutate.edits import UnfitError
from runner.tests.mutate.mutation import Mutation
from runner.tests.mutate.recording import Recording
from runner.tests.mutate.registry import Mutant

# A mutant that stumbles over an odd recording doesn't fit it either.
_UNFIT = (UnfitError, IndexError, KeyError, ValueError, StopIteration, AssertionError)


def in_order(mutant: Mutant, folders: Sequence[Path], random: Random) -> list[Path]:
    """The recordings in the order in which they are tried: those that it names, then the others in a random order."""
    shuffled = sorted(folders)
    random.shuffle(shuffled)
    if not mutant.cases:  # the one in which each byte of the server counts is for those that name it
        return sorted(shuffled, key=lambda folder: folder.parent.name == "amplificationlimit")
    return sorted(shuffled, key=lambda folder: folder.parent.name not in mutant.cases)


def make(mutant: Mutant, folders: Sequence[Path], seed: int, target: Path) -> tuple[Path, Path] | str:
    """The recording and the job folder of the mutant, or why none of the recordings is fit for it."""
    random = Random(f"{seed} {mutant.title}")
    why = "no recording"
    for folder in in_order(mutant, folders, random):
        for number in reversed(range(len(Recording.load(folder).connections))):
            recording = Recording.load(folder)
            try:
                mutant.apply(Mutation(recording, recording.connections[number], mutant.role, random))
            except _UNFIT as error:
                why = str(error) or type(error).__name__
                continue
            return folder, recording.save(target)
    return why
