"""The time to draw the site of a big run: for the first time, again without a change, and again after one job changed.

    python -m lab.speed.site RUN... [--jobs 5000] [--stacks 20] [--folder DIR]

The big run consists of copies of real results, with their series and logs, under the names of `--stacks` stacks and of
13 cases. Its results mean nothing, because they include disturbed jobs. Prints seconds. With playwright and Chromium
installed, it also prints the times to open the overview and to filter it.
"""

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, Job, Kind, Run
from runner.plan.catalog import load_catalog
from runner.site import render
from runner.store.runs import RunFolder

_MEASUREMENTS = 12
_SMALL = 256 * 1024  # bytes of a file that is copied with a job


def enlarged(sources: Sequence[RunFolder], target: Path, *, jobs: int, stacks: int, seed: int) -> RunFolder:
    """A run of `jobs` jobs between `stacks` servers and clients, copied from jobs of `sources` that have numbers."""
    random = Random(seed)
    known = [(folder, job, result) for folder in sources for job, result in folder.results().items() if _usable(result)]
    if not known:
        raise SystemExit("None of these runs has a result with numbers and a series: name other runs.")
    run = _run(sources, target.name, jobs=jobs, stacks=stacks, seed=seed)
    folder = RunFolder.create(target, run)
    for job in run.order:
        sat = run.case(job).return_.data_rate < run.case(job).forward.data_rate
        fitting = [entry for entry in known if (entry[1].case == "sat") is sat] or known
        source, original, result = random.choice(fitting)
        _copy(source.artifacts(original).folder, folder.artifacts(job).folder)
        changed = replace(result, server=job.server, client=job.client, case=job.case, iteration=job.iteration)
        unchanged = random.random() < 0.02
        folder.save_result(changed if unchanged else replace(changed, outcome=Outcome.SUCCEEDED, findings=()))
    return folder


def _usable(result: Result) -> bool:
    return result.sample is not None and result.sample.goodput is not None and result.sample.file_size > 1_000_000


def _run(sources: Sequence[RunFolder], name: str, *, jobs: int, stacks: int, seed: int) -> Run:
    first = sources[0].run
    records = {name: record for folder in sources for name, record in folder.run.implementations.items()}
    chosen = list(records)[:stacks]
    chosen += [f"{chosen[index % len(chosen)]}-{2 + index // len(chosen)}" for index in range(stacks - len(chosen))]
    cases = list(_cases())
    iterations = max(1, jobs // (len(cases) * stacks**2))
    order = [
        Job(server=server, client=client, case=case.name, iteration=iteration)
        for server, client, case, iteration in product(chosen, chosen, cases, range(1, iterations + 1))
    ][:jobs]
    return replace(
        first,
        name=name,
        seed=seed,
        servers=tuple(chosen),
        clients=tuple(chosen),
        cases={case.name: replace(case, iterations=iterations) for case in cases},
        implementations={
            name: replace(records[name if name in records else name.rpartition("-")[0]], name=name) for name in chosen
        },
        order=tuple(order),
        protocols={},
    )


def _cases() -> Iterator[CaseRecord]:
    """Twelve measurements and one test case: those of the catalogue, repeated under new names."""
    records = [case.record() for case in load_catalog().cases.values()]
    measurements = [record for record in records if record.kind is Kind.MEASUREMENT]
    for number in range(_MEASUREMENTS):
        record = measurements[number % len(measurements)]
        again = number // len(measurements)
        name = f"{record.name}-{again + 1}" if again else record.name
        yield replace(record, name=name, abbreviation=f"{record.abbreviation}{again or ''}")
    yield next(record for record in records if record.name == "handshake")


def _copy(source: Path, target: Path) -> None:
    """Copy small files. Where possible the copies are hard links, which use no disk space."""
    for path in source.rglob("*"):
        kept = path.is_file() and (path.stat().st_size <= _SMALL or path.name == "series.json")
        if kept and path.name != "result.json":
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, place)
            except OSError:
                shutil.copyfile(path, place)


def _seconds(folder: RunFolder, site: Path) -> str:
    """Draw the site. Returns the wall time and the CPU time of all processes; on a busy host use only the CPU time."""
    begin, spent = time.perf_counter(), _cpu()
    render([RunFolder.open(folder.path)], site)
    return f"{time.perf_counter() - begin:8.2f} s, {_cpu() - spent:8.2f} s of CPU"


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _browse(page: Path) -> dict[str, float] | None:
    """Milliseconds until the page is loaded and painted, and until it is painted again after each filter.

    Each filter is used when the page has finished all earlier work. Parts that come into view, such as the matrix below
    a hidden matrix, are laid out in the next frame. "next frame" is the time until that frame.
    """
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only in the tests' requirements
    except ImportError:
        return None
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1500, "height": 1000})
        view.goto(page.as_uri())
        view.goto(page.as_uri())  # the system's cache has the files
        seconds: dict[str, float] = view.evaluate(_MEASURE)
        browser.close()
    return seconds


_MEASURE = """async () => {
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  await painted();
  const load = performance.getEntriesByType("navigation")[0];
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const times = { "first contentful paint": paint ? paint.startTime : NaN, "load event": load.loadEventEnd };
  const act = async (name, change) => {
    const begin = performance.now();
    change();
    await painted();
    times[name] = performance.now() - begin;
    await painted();
    times[`${name}, next frame`] = performance.now() - begin;
    await new Promise((done) => setTimeout(done, 1000));
  };
  const form = document.getElementById("filters");
  const options = { bubbles: true };
  for (const name of ["clients", "servers", "cases"]) {
    const box = form.querySelector(`input[name=${name}]`);
    await act(`${name}: one off`, () => { box.checked = false; box.dispatchEvent(new Event("change", options)); });
  }
  for (const value of ["goodput", "ttlb"]) {
    const radio = form.querySelector(`input[name=show][value=${value}]`);
    await act(`show ${value}`, () => { radio.checked = true; radio.dispatchEvent(new Event("change", options)); });
  }
  await act("show all", () => form.reset());
  return times;
}"""


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--stacks", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bentpipe-site"), help="Its content is deleted first.")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    sources = [RunFolder.open(path) for path in options.runs]
    folder = enlarged(sources, options.folder / "big", jobs=options.jobs, stacks=options.stacks, seed=1)
    site = options.folder / "site"
    print(f"{len(folder.run.order)} jobs, {options.stacks} × {options.stacks} stacks, {len(folder.run.cases)} cases")
    print(f"{_seconds(folder, site)}: from nothing, {len(os.sched_getaffinity(0))} cores", flush=True)
    print(f"{_seconds(folder, site)}: again, nothing changed", flush=True)
    job = folder.run.order[len(folder.run.order) // 2]
    result = folder.result(job)
    assert result is not None
    folder.save_result(replace(result, wall_s=result.wall_s + 1))
    print(f"{_seconds(folder, site)}: after one job changed", flush=True)
    page = site / "big" / "index.html"
    print(f"{page.stat().st_size / 1e6:8.2f} MB overview")
    for name, value in (_browse(page) or {}).items():
        print(f"{value:8.0f} ms {name}")
    print(json.dumps({"pages": sum(1 for _ in (site / "big").rglob("*.html"))}))


if __name__ == "__main__":
    main()
