"""The time of a response in slices of one RTT (rounds), with the bytes in flight and the limit of each."""

from dataclasses import dataclass

import numpy as np

from runner.diagnose.flight import Floats
from runner.diagnose.limits import Course
from runner.model.diagnosis import Limit
from runner.trace.intervals import Bools


@dataclass(frozen=True)
class Rounds:
    """Per round: its start in the client's time, the most bytes in flight, whether the congestion window was the limit
    in most of the round, and whether the server had learnt of a loss or of CE before its end. A retransmission counts
    as a loss, because it lowered the window even if the first copy arrived."""

    start: Floats
    length: float
    peak: Floats
    by_window: Bools
    after_loss: Bools

    @classmethod
    def of(cls, course: Course) -> "Rounds":
        slices, view = course.slices, course.view
        size = slices.per_window
        heads = np.arange(0, max(1, len(slices.middle) - size + 1), size)
        ends = slices.sending[np.minimum(heads + size, len(slices.middle)) - 1]
        limited = slices.inside(course.of_limit(Limit.CONGESTION_WINDOW)).astype(int)
        first_loss = min(view.flight.signals.min(initial=np.inf), view.first_repeat)
        return cls(
            start=slices.edges[heads],
            length=slices.window,
            peak=np.maximum.reduceat(slices.in_flight, heads),
            by_window=np.add.reduceat(limited, heads) > size / 2,
            after_loss=ends >= first_loss,
        )

    def flat(self, growth: float) -> tuple[int, int]:
        """The longest run [first, last) of rounds before any loss in which the window was the limit and the peak grew
        by less than `growth` per round; (0, 0) without any."""
        calm = self.by_window & ~self.after_loss
        slow = np.append(self.peak[1:] < growth * self.peak[:-1], False)
        steady = calm & np.append(calm[1:], False) & slow
        return longest(steady)


def longest(chosen: Bools) -> tuple[int, int]:
    """The longest run of True values as [first, last); (0, 0) without any."""
    turns = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False])).astype(np.int8)))
    if not len(turns):
        return 0, 0
    first, last = turns[::2], turns[1::2]
    best = int((last - first).argmax())
    return int(first[best]), int(last[best])
