"""Converts documents of an older schema into documents of the next schema. Pure.

Schema 1 had pairs and paths. Schema 2 has server × client × via × link. Schema 3 (results and evidence) renames a code.
In schema 4 (results) the role of a finding is always an endpoint at fault.
"""

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]

_OWN_LINK = "geo"  # the link of cases that were workloads over paths
_CASES = {  # workload → case
    "goodput": "download",
    "goodput-ipv6": "download-ipv6",
    "h1": "download-h1",
    "h2": "download-h2",
    "h3": "download-h3",
}
_CODES_2 = {"path-not-ready": "box-not-ready"}
_OBSERVED_3 = frozenset({"client-exit", "timeout", "wrong-alpn"})
_ORIGIN, _DOWNLOADER, _BROWSER = "origin", "downloader", "browser"


def run_1(document: Document) -> Document:
    """Convert `run.json`. Paths become middleboxes, workloads become cases, and the jobs keep their folders."""
    named = {old: _case_1(case) for old, case in document["cases"].items()}
    migrated = {**document, "schema": 2, "cases": {case["name"]: case for case in named.values()}}
    paths = migrated.pop("paths", {})
    if not paths:
        return migrated
    migrated["vias"] = document["clients"]
    kinds = {case["client"] for case in named.values()}
    migrated["clients"] = [kind for kind in (_DOWNLOADER, _BROWSER) if kind in kinds]
    migrated["middleboxes"] = {name: _middlebox(entry) for name, entry in paths.items()}
    origin = document["implementations"].get(_ORIGIN)
    if origin is not None and _DOWNLOADER in kinds:  # the same image was client and server
        migrated["implementations"] = {**document["implementations"], _DOWNLOADER: {**origin, "name": _DOWNLOADER}}
    cells = {
        f"{_ORIGIN}_{via}/{old}": f"{_ORIGIN}_{case['client']}+{via}/{case['name']}"
        for via in document["clients"]
        for old, case in named.items()
    }
    migrated["old_folders"] = {new: old for old, new in cells.items()}
    migrated["order"] = [_job(job, cells) for job in document["order"]]
    return migrated


def result_1(document: Document, old_folders: Mapping[str, str]) -> Document:
    """Convert `result.json` of a run with these `Run.old_folders`. Raises KeyError when the result belongs to no cell
    of the run."""
    if old_folders:
        document = _job(document, {old: new for new, old in old_folders.items()})
    crossing = document.get("crossing")
    if crossing:
        document = {**document, "page": crossing.get("page"), "crossing": _without(crossing, "page")}
    return {**document, "schema": 2}


def result_2(document: Document) -> Document:
    """Convert `result.json`: findings get their present codes."""
    findings = [_code_2(finding) for finding in document.get("findings", [])]
    return {**document, "schema": 3, "findings": findings}


def result_3(document: Document) -> Document:
    """Convert `result.json`: findings that only say at which endpoint a failure was observed name no role."""
    findings = [
        {**finding, "role": ""} if finding["code"] in _OBSERVED_3 else finding
        for finding in document.get("findings", [])
    ]
    return {**document, "schema": 4, "findings": findings}


def _code_2(fields: Document) -> Document:
    """A finding, or an error of the harness, with its present code."""
    return {**fields, "code": _CODES_2.get(fields["code"], fields["code"])}


def _without(document: Document, name: str) -> Document:
    return {key: value for key, value in document.items() if key != name}


def evidence_1(document: Document) -> Document:
    """Convert `evidence.json`: sides become boxes, and the path becomes a middlebox."""
    migrated = {**document, "schema": 2}
    migrated["boxes"] = migrated.pop("sides", {})
    path = migrated.pop("path", None)
    if path:
        migrated |= {"via": _middlebox(path["entry"]), "content_seed": path["seed"]}
    return migrated


def evidence_2(document: Document) -> Document:
    """Convert `evidence.json`: the error of the harness gets its present code."""
    error = document.get("error")
    return {**document, "schema": 3, "error": _code_2(error) if error else {}}


def _job(fields: Document, cells: Mapping[str, str]) -> Document:
    """The document with the axes of schema 2. `cells`: the new name of each cell, by its old name."""
    pair, case_link = cells[f"{fields['server']}_{fields['client']}/{fields['case']}"].split("/")
    client, _, via = pair.removeprefix(f"{_ORIGIN}_").partition("+")
    case, _, link = case_link.partition("@")
    return {**fields, "client": client, "via": via, "case": case, "link": link}


def _middlebox(path: Document) -> Document:
    middlebox = dict(path)
    if "sides" in middlebox:
        middlebox["boxes"] = middlebox.pop("sides")
    return middlebox


def _case_1(case: Document) -> Document:
    """A case with its link as one field. A case that was a workload gets a new name, without its own default link."""
    record = dict(case)
    real, workload = record.pop("real_link", None), record.pop("workload", None)
    segment = {name: record.pop(name) for name in ("forward", "return_", "impairments") if name in record}
    link: Document = {"name": record.pop("scenario"), "segments": [segment], "real": real}
    record |= {"case": case["name"], "link": link}
    if workload is None:
        return record
    name, default_link = str(workload["name"]), workload["link"] == _OWN_LINK
    question = _CASES.get(name, name) + case["abbreviation"].removeprefix(name)
    ground = {"name": "ground", "forward": workload["ground_forward"], "return_": workload["ground_return"]}
    link |= {"name": workload["link"], "note": workload.get("note", "")}
    link["segments"] = [{**segment, "name": "satellite"}, ground]
    label = question if default_link else f"{question}@{workload['link']}"
    return record | {
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
