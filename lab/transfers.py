"""Makes the labelled set: `python -m lab.transfers FOLDER --part look|held [--only RECIPE,…]`.

The set is made without the detectors. A recipe (`transfers.toml`) sets what is done to a transfer, the generator
(`quinn/`, built once with cargo) makes the transfer, and `oracle.py` measures the effects in the generator's own
records. The folder of each transfer has both captures, a key log, the generator's records, and `label.json` with the
required diagnoses, the diagnoses that don't count, and the true shares of the limits. Existing transfers are kept. The
parts have different seeds and the same recipes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from lab.oracle import Oracle
from runner.decode import decode_capture, save_tables

PARTS = {"look": (1_000, 5), "held": (900_000, 9), "fresh": (7_000_000, 9), "sealed": (31_000_000, 9)}
"""Per part: the first seed, and the number of transfers for each recipe."""
_CRATE = Path(__file__).parent / "quinn"
_LISTED: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
RECIPES = {**_LISTED, **{f"real-{name}": recipe for name, recipe in _LISTED.items() if recipe.get("real")}}
_BBR_MAY = {"slow-start-left-early", "rate-collapse", "bursts"}
"""BBR causes these when it probes: it drains its queue, and keeps only 4 packets in flight for 200 ms."""
# Only the counts of the simulator are certain evidence of the first three, and a real link has no simulator. The share
# of the return link that ACKs take is known only where they fill the link.
_UNSURE_OVER_REAL = {"outage", "queue-overflow", "mtu-black-hole", "dense-acks"}


@dataclass
class Recipe:
    """The settings of one transfer. `spec` goes to the generator as JSON."""

    spec: dict[str, Any]
    wanted: set[str] = field(default_factory=set)
    """The diagnoses that the settings must lead to. The oracle adds those whose effects it measures."""
    unsure: set[str] = field(default_factory=set)
    """Diagnoses that are neither required nor wrong."""
    advertised: float | None = None
    """The data rate in a real link's contract, divided by the forward link's data rate; None: the link is emulated."""
    tail: int = 0
    """Number of datagrams that are lost at the end: the datagram with the last new byte, and those before it."""


def draw(random: Random) -> dict[str, float]:
    """Draw a link without impairments: 2 to 16 Mbit/s, an RTT of 40 to 620 ms, and a BDP of 35 to 500 kB. The file has
    the size of 12 to 20 BDP, but at least 1 MB and at most 5 MB."""
    while True:
        rate, rtt = 2e6 * 8 ** random.random(), 0.04 * 15.5 ** random.random()
        if 35_000 <= rate * rtt / 8 <= 500_000:
            break
    size = round(min(max(random.uniform(12, 20) * rate * rtt / 8, 1_000_000), 5_000_000))
    rate, rtt = round(rate, -4), round(rtt, 3)
    return {"rate": rate, "rtt": rtt, "size": size, "bdp": round(rate * rtt / 8), "duration": 8 * size / rate}


def _settings(listed: Mapping[Any, Any], known: Mapping[str, Any]) -> dict[Any, Any]:
    """Settings with the values of their formulas, which see the settings before them."""
    made: dict[Any, Any] = {}
    for name, value in listed.items():
        is_formula = isinstance(value, str) and value.startswith("=")
        made[name] = eval(value[1:], {**known, **made}) if is_formula else value
    return made


def recipe(name: str, random: Random) -> Recipe:
    """The recipe of this name over a random link. Unless it says otherwise, the server fills the link with a window of
    1.15 to 1.5 BDP, and the link has a queue of 1 to 2 BDP."""
    link, listed = draw(random), RECIPES[name]

    def packets(share: float) -> int:
        return max(4, round(share * link["bdp"] / 1480))

    known: dict[str, Any] = {**link, "uniform": random.uniform, "randint": random.randint, "choice": random.choice}
    known |= {"packets": packets, "loss_based": lambda: random.choice(("cubic", "newreno"))}
    known |= _settings(listed.get("let", {}), known)
    server: dict[str, Any] = {"controller": "fixed", "window": round(random.uniform(1.15, 1.5) * link["bdp"])}
    if listed.get("any") and (other := random.choice(("cubic", "newreno", "bbr", "fixed"))) != "fixed":
        server = {"controller": other}
    mine = _settings(listed.get("server", {}), known)
    server = mine if "controller" in mine else server | mine
    spec: dict[str, Any] = {
        "seed": random.randrange(1 << 31),
        "size": link["size"],
        "limit": 900.0,
        "forward": {"rate": link["rate"], "delay": link["rtt"] / 2, "queue": packets(random.uniform(1.0, 2.0))},
        "return": {"rate": max(2e6, link["rate"] / 2), "delay": link["rtt"] / 2, "queue": 300},
        "server": {"interface": random.choice((1e8, 1e9))} | server,
        **{table: _settings(listed.get(table, {}), known) for table in ("path", "client", "application")},
    }
    for table in ("forward", "return"):
        spec[table] |= _settings(listed.get(table, {}), known)
    others = _settings({key: value for key, value in listed.items() if key in ("size", "tail", "advertised")}, known)
    spec["size"] = others.pop("size", spec["size"])
    made = Recipe(spec, **others)
    for codes, chosen in ((made.wanted, "wanted"), (made.unsure, "unsure")):
        codes |= set(filter(None, _settings(dict(enumerate(listed.get(chosen, ()))), known | server).values()))
    if server["controller"] == "bbr":
        made.unsure |= _BBR_MAY
    if listed.get("real") and name.startswith("real-"):
        made.advertised = random.choice((0.8, 1.5, 2.5, 3.0))
        made.unsure |= _UNSURE_OVER_REAL
    return made


@dataclass(frozen=True)
class Transfer:
    """One transfer of the set."""

    recipe: str
    number: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.recipe}-{self.number}"

    def make(self) -> Recipe:
        """The recipe; the same seed gives the same recipe."""
        return recipe(self.recipe, Random(f"{self.recipe}/{self.seed}"))


def transfers_of(part: str, only: frozenset[str]) -> Iterator[Transfer]:
    """The transfers of a part, in the order of the recipes."""
    seed, count = PARTS[part]
    for name in sorted(RECIPES):
        if not only or name in only:
            yield from (Transfer(name, number, seed + number) for number in range(count))


def build() -> Path:
    """Build the generator. Returns the path of its program. Raises CalledProcessError when cargo fails."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", _CRATE / "target"))
    subprocess.run(["cargo", "build", "--release", "--quiet", "--locked"], cwd=_CRATE, check=True)
    return target / "release" / "virtual-quinn"


def generate(program: Path, folder: Path, made: Recipe) -> None:
    """Run the generator. A lost tail needs two runs, because only a first run shows where the transfer ends."""
    _run(program, folder, made.spec)
    if made.tail:
        last = _oracle(folder, made.spec).sent.last + 1
        made.spec["forward"]["lost"] = [(last - made.tail + 1, last)]
        _run(program, folder, made.spec)


def _run(program: Path, folder: Path, spec: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(spec, indent=1))
    subprocess.run([program, folder / "spec.json", folder], check=True)


def _oracle(folder: Path, spec: dict[str, Any]) -> Oracle:
    keys = [folder / "keys.log"]
    return Oracle(
        folder, spec, decode_capture(folder / "client.pcap", keys), decode_capture(folder / "server.pcap", keys)
    )


def label(folder: Path, made: Recipe) -> dict[str, Any]:
    """The label of a transfer, from the recipe's behaviours and the effects that the oracle measured."""
    oracle = _oracle(folder, made.spec)
    effects = dict(oracle.effects())
    required = made.wanted | {code for code, effect in effects.items() if effect.wanted}
    unsure = made.unsure | {code for code, effect in effects.items() if effect.unsure}
    if oracle.forward.count("queue") and "ecn-ignored" in required:
        unsure.add("ecn-ignored")  # its definition requires a transfer without loss: losses lower the window, too
    save_tables(oracle.client_side, folder / "client_tables")
    save_tables(oracle.server_side, folder / "server_tables")
    return {
        "wanted": sorted(required - unsure),
        "unsure": sorted(unsure),
        "advertised": made.advertised,
        "limits": oracle.shares(),
        "effects": {code: effect.amount for code, effect in effects.items()},
        "first_1rtt": oracle.first_1rtt,
    }


def make(program: Path, folder: Path, transfer: Transfer, relabel: bool = False) -> str:
    """Make one transfer. Returns its name, with the reason when it couldn't be made."""
    place = folder / transfer.name
    exists = (place / "label.json").exists()
    if exists and not relabel:
        return transfer.name
    made = transfer.make()
    try:
        if exists:
            made.spec = json.loads((place / "spec.json").read_bytes())
        else:
            generate(program, place, made)
        text = json.dumps(label(place, made), indent=1)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(place, ignore_errors=True)
        return f"{transfer.name}: the generator ended with {error.returncode}"
    (place / "label.json").write_text(text)
    return transfer.name


def main(arguments: list[str]) -> int:
    """Make a part of the set. Returns 0 when every transfer was made."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=sorted(PARTS), required=True)
    parser.add_argument("--only", default="", help="recipes, separated by commas")
    parser.add_argument("--relabel", action="store_true", help="measure the labels of existing transfers again")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    only = frozenset(filter(None, options.only.split(",")))
    if unknown := only - RECIPES.keys():
        parser.error(f"no recipe is called {', '.join(sorted(unknown))}: choose from {', '.join(sorted(RECIPES))}")
    program, folder = build(), options.folder / options.part
    transfers = list(transfers_of(options.part, only))
    with ProcessPoolExecutor(options.workers) as pool:
        done = list(
            pool.map(
                make,
                [program] * len(transfers),
                [folder] * len(transfers),
                transfers,
                [options.relabel] * len(transfers),
            )
        )
    failed = [line for line in done if ":" in line]
    print("\n".join([*failed, f"{len(done) - len(failed)} of {len(done)} transfers are in {folder}"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
