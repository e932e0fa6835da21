"""Compares `starlink-model` with a recording of a Starlink link: `python -m lab.sky_model --down bw.txt --delays
delay.txt --first 8.73 --svg starlink-model.svg`.

`--down` and `--delays` are files of LeoCC (docs/link-traces.md); `--first` is the time in s of the first reassignment
in the recording. The command prints for each quantity the quantiles of both, the Kolmogorov–Smirnov distance (largest
difference of the distribution functions) and the Wasserstein distance (mean difference of the quantiles). It draws the
distribution of the delay. The model is sampled for an hour from each of 100 seeds, as jobs meet it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy import stats

from runner.model.link import Direction, LinkChange, Queue
from runner.plan.link_traces import read_leocc
from runner.site.charts import Axis, curves, standalone
from testcases.skies import STARLINK_MODEL

Samples = NDArray[np.float64]
SEEDS, HOUR = 100, 3600.0
_SLICE, _GRID = 0.01, 15.0  # s: of LeoCC's delays, between reassignments
_PEAK = 0.5  # s around a reassignment in which the delay has its peak
_QUANTILES = (0.05, 0.5, 0.95, 1.0)


def course(changes: Sequence[LinkChange], field: str, times: Samples) -> Samples:
    """The values of a field of `changes` at `times`."""
    places = np.searchsorted([change.time for change in changes], times, side="right") - 1
    return np.array([getattr(change, field) for change in changes], dtype=np.float64)[places]


def quantities(delays: Samples, rates: Samples, first: float) -> dict[str, Samples]:
    """The compared quantities. `delays` in s for each 10 ms, `rates` in bit/s for each second, `first`: the time of the
    first reassignment in s."""
    marks = range(round(first / _SLICE), len(delays) - round(_GRID / _SLICE), round(_GRID / _SLICE))
    turns = [delays[mark + round(_PEAK / _SLICE) : mark + round((_GRID - _PEAK) / _SLICE)] for mark in marks]
    around = [delays[max(0, mark - round(_PEAK / _SLICE)) : mark + round(_PEAK / _SLICE)] for mark in marks]
    middles = np.array([np.median(turn) for turn in turns])
    return {
        "one-way delay, download, ms": delays * 1e3,
        "difference of the delays of successive 0.2 s, ms": np.abs(np.diff(delays[::20])) * 1e3,
        "step of the median delay from turn to turn, ms": np.abs(np.diff(middles)) * 1e3,
        "peak at a reassignment above the median, ms": (np.array([slices.max() for slices in around]) - middles) * 1e3,
        "data rate, download, Mbit/s": rates / 1e6,
        "step of the data rate from second to second, Mbit/s": np.abs(np.diff(rates)) / 1e6,
    }


def model() -> dict[str, Samples]:
    """The quantities of an hour of the model, for each of SEEDS start times."""
    found: dict[str, list[Samples]] = {}
    impairments = STARLINK_MODEL.satellite.forward.impairments
    period = impairments.changes_period
    for seed in range(SEEDS):
        begin = Random(seed).uniform(0.0, period)
        times = (begin + np.arange(0.0, HOUR, _SLICE)) % period
        delays = np.round(course(impairments.changes, "delay", times), 3)  # LeoCC's are whole ms
        rates = course(impairments.changes, "data_rate", times[:: round(1 / _SLICE)])
        for name, values in quantities(delays, rates, -begin % _GRID).items():
            found.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in found.items()}


def main() -> None:
    """Print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("down", "delays", "svg"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--first", type=float, required=True)
    options = parser.parse_args()
    trace = read_leocc(options.down, options.down, options.delays)
    plain = Direction(data_rate=1_000_000, delay=0.0, queue=Queue(bdp=1.0))  # the recording replaces both
    changes = trace.changes("forward", plain)
    slices = np.arange(0, trace.length - _SLICE, _SLICE)
    seconds = course(changes, "data_rate", np.arange(int(trace.length) * 1000) / 1000).reshape(-1, 1000).mean(axis=1)
    recorded = quantities(course(changes, "delay", slices), seconds, options.first)
    modelled = model()
    out = Console(width=200, soft_wrap=True)
    out.print(
        "| quantity | recording (n): 5, 50, 95 %, max | model | KS | Wasserstein |\n| --- | --- | --- | --- | --- |"
    )
    for name, values in recorded.items():
        words = [
            ", ".join(f"{value:.3g}" for value in np.quantile(one, _QUANTILES)) for one in (values, modelled[name])
        ]
        ks = stats.ks_2samp(values, modelled[name], method="asymp").statistic
        wasserstein = stats.wasserstein_distance(values, modelled[name])
        out.print(f"| {name} | {words[0]} ({len(values)}) | {words[1]} | {ks:.2f} | {wasserstein:.3g} |")
    drawn = "one-way delay, download, ms"
    shares = np.linspace(0.0, 1.0, 201)
    lines = [
        (who, [(float(x), float(y)) for x, y in zip(np.quantile(one[drawn], shares), shares, strict=True)])
        for who, one in (("LeoCC's recording", recorded), ("starlink-model", modelled))
    ]
    picture = curves(lines, Axis(label=drawn), Axis(label="share of the time", end=1.0), title=drawn)
    options.svg.write_bytes(standalone(picture))


if __name__ == "__main__":
    main()
