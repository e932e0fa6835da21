"""Documents of schema 1, with pairs and paths, as documents of schema 2, with server × client × via × link. Pure."""

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]

_OWN_LINK = "geo"  # of the cases that were workloads over paths
_CASES = {  # workload → case
    "goodput": "download",
    "goodput-ipv6": "download-ipv6",
    "h1": "download-h1",
    "h2": "download-h2",
    "h3": "download-h3",
}
_ORIGIN, _DOWNLOADER, _BROWSER = "origin", "downloader", "browser"


def run_1(document: Document) -> Document:
    """`run.json`: paths become middleboxes, workloads become cases, and the jobs keep the folders that they have."""
    named = {old: _case_1(case) for old, case in document["cases"].items()}
    found = {**document, "schema": 2, "cases": {case["name"]: case for case in named.values()}}
    paths = found.pop("paths", {})
    if not paths:
        return found
    found["vias"] = document["clients"]
    kinds = {case["client"] for case in named.values()}
    found["clients"] = [kind for kind in (_DOWNLOADER, _BROWSER) if kind in kinds]
    found["middleboxes"] = {name: _middlebox(entry) for name, entry in paths.items()}
    origin = document["implementations"].get(_ORIGIN)
    if origin is not None and _DOWNLOADER in kinds:  # one image was both
        found["implementations"] = {**document["implementations"], _DOWNLOADER: {**origin, "name": _DOWNLOADER}}
    cells = {
        f"{_ORIGIN}_{via}/{old}": f"{_ORIGIN}_{case['client']}+{via}/{case['name']}"
        for via in document["clients"]
        for old, case in named.items()
    }
    found["old_folders"] = {new: old for old, new in cells.items()}
    found["order"] = [_job(job, cells) for job in document["order"]]
    return found


def result_1(document: Document, old_folders: Mapping[str, str]) -> Document:
    """`result.json` of a run with these `Run.old_folders`. Raises KeyError when it tells of no cell of the run."""
    if old_folders:
        document = _job(document, {old: new for new, old in old_folders.items()})
    crossing = document.get("crossing")
    if crossing:
        document = {**document, "page": crossing.get("page"), "crossing": _without(crossing, "page")}
    return {**document, "schema": 2}


def _without(document: Document, name: str) -> Document:
    return {key: value for key, value in document.items() if key != name}


def evidence_1(document: Document) -> Document:
    """`evidence.json`."""
    found = {**document, "schema": 2}
    found["boxes"] = found.pop("sides", {})
    path = found.pop("path", None)
    if path:
        found |= {"via": _middlebox(path["entry"]), "content_seed": path["seed"]}
    return found


def _job(fields: Document, cells: Mapping[str, str]) -> Document:
    """With the axes of today. `cells`: old → new."""
    pair, case_link = cells[f"{fields['server']}_{fields['client']}/{fields['case']}"].split("/")
    client, _, via = pair.removeprefix(f"{_ORIGIN}_").partition("+")
    case, _, link = case_link.partition("@")
    return {**fields, "client": client, "via": via, "case": case, "link": link}


def _middlebox(path: Document) -> Document:
    found = dict(path)
    if "sides" in found:
        found["boxes"] = found.pop("sides")
    return found


def _case_1(case: Document) -> Document:
    """A case with its link as one value; that of a workload without the link in its name."""
    found = dict(case)
    real, workload = found.pop("real_link", None), found.pop("workload", None)
    segment = {name: found.pop(name) for name in ("forward", "return_", "impairments") if name in found}
    link: Document = {"name": found.pop("scenario"), "segments": [segment], "real": real}
    found |= {"case": case["name"], "link": link}
    if workload is None:
        return found
    name, own = str(workload["name"]), workload["link"] == _OWN_LINK
    question = _CASES.get(name, name) + case["abbreviation"].removeprefix(name)
    ground = {"name": "ground", "forward": workload["ground_forward"], "return_": workload["ground_return"]}
    link |= {"name": workload["link"], "note": workload.get("note", "")}
    link["segments"] = [{**segment, "name": "satellite"}, ground]
    label = question if own else f"{question}@{workload['link']}"
    return found | {
        "name": label,
        "case": question,
        "declared": _CASES.get(name, name),
        "abbreviation": label,
        "client": _BROWSER if workload["page"] else _DOWNLOADER,
        "alpn": workload["protocol"],
        "encrypted": workload["encrypted"],
        "origins": workload.get("origins", 1),
        "warm": workload.get("warm", False),
    }
