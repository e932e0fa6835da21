"""Makes mutants: tries one recording after another until the rule can be broken in it."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from lab.mutate.edits import UnfitError
from lab.mutate.mutation import Mutation
from lab.mutate.recording import Recording
from lab.mutate.registry import Mutant

# Any of these exceptions means that the mutant doesn't fit the recording.
_UNFIT = (UnfitError, IndexError, KeyError, ValueError, StopIteration, AssertionError)


def in_order(mutant: Mutant, folders: Sequence[Path], random: Random) -> list[Path]:
    """The recordings in the order in which they are tried: first those that the mutant names, then the others in random
    order."""
    shuffled = sorted(folders)
    random.shuffle(shuffled)
    # The recording in which each byte of the server counts is only for mutants that name it.
    if not mutant.cases:
        return sorted(shuffled, key=lambda folder: folder.parent.name == "amplificationlimit")
    return sorted(shuffled, key=lambda folder: folder.parent.name not in mutant.cases)


def make(mutant: Mutant, folders: Sequence[Path], seed: int, target: Path) -> tuple[Path, Path] | str:
    """The recording and the job folder of the mutant, or the reason why the last recording does not fit."""
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
