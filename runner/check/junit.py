"""JUnit files, which CI systems read: of a check, and of a comparison of two builds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

from runner.check.cell import Place
from runner.check.problems import Problem
from runner.model.implementation import Role

_CONTROL = dict.fromkeys((*range(9), 11, 12, *range(14, 32)))  # characters that XML 1.0 doesn't allow; left out


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cell or problem in the file. `tag`: failure, error or skipped; empty: it passed, and `text` is a note."""

    tag: str = ""
    message: str = ""
    text: str = ""
    seconds: float = 0.0


def junit(title: str, problems: Iterable[Problem], entries: Mapping[Place, Entry]) -> bytes:
    """The file: one suite for the contract, and one for each role."""
    root = Xml.Element("testsuites", name=f"bentpipe {title}")
    contract = {
        ("contract", problem.code): Entry(tag="failure", message=problem.what, text=problem.fix) for problem in problems
    }
    _add_suite(root, "contract", contract or {("contract", "image and probe"): Entry()})
    for role in Role:
        cases = {
            (f"{role.value}.{place.peer}", place.case): entry for place, entry in entries.items() if place.role is role
        }
        _add_suite(root, role.value, cases)
    Xml.indent(root)
    document: bytes = Xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _add_suite(root: Xml.Element, name: str, entries: Mapping[tuple[str, str], Entry]) -> None:
    """Add a suite with its counts. `entries`: by class name and name of the test case."""
    suite = Xml.SubElement(root, "testsuite", name=name, tests=str(len(entries)))
    for tag, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(entry.tag == tag for entry in entries.values())))
    for (classname, case), entry in entries.items():
        element = Xml.SubElement(suite, "testcase", classname=classname, name=case, time=f"{entry.seconds:.3f}")
        if entry.tag:
            child = Xml.SubElement(element, entry.tag, message=entry.message.translate(_CONTROL))
        elif entry.text:
            child = Xml.SubElement(element, "system-out")
        else:
            continue
        child.text = entry.text.translate(_CONTROL)
