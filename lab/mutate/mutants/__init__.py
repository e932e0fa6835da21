"""All mutants. Importing this package registers them: those of the modules, and the rows of `mutants.toml`."""

from collections.abc import Callable
from typing import Any

from lab.mutate import mutation, recording, wire
from lab.mutate.mutants import application, handshake, packets, paths
from lab.mutate.mutation import MUTANTS, TABLES, Mutant, Mutation, mutant
from lab.mutate.wire import Kind

__all__ = ["MUTANTS", "Mutant", "paths"]
_NAMES: dict[str, Any] = {}
for _module in (recording, mutation, wire, paths, application, handshake, packets):
    _NAMES |= vars(_module)
_HTTP3 = {"control", "request", "section", "setting", "encoder", "decoder"}
_ACTIONS: dict[str, Callable[..., object]] = {
    "send": Mutation.send,
    "initial": lambda m, made: m.add(Kind.INITIAL, made),
    "handshake": lambda m, made: m.add(Kind.HANDSHAKE, made),
    "early": lambda m, made: m.add(Kind.ZERO_RTT, made),
    "parameter": lambda m, made: m.set_parameter(*made),
    "control": application.add_to_control,
    "request": application.add_to_request,
    "section": lambda m, made: application.change_section(m, lambda block: block + made),
    "setting": application.add_setting,
    "encoder": lambda m, made, **more: application.instruct(m, application.ENCODER, made, **more),
    "decoder": lambda m, made, **more: application.instruct(m, application.DECODER, made, **more),
}


def _row(action: str, expression: str, **more: Any) -> Callable[[Mutation], None]:
    code = compile(expression, "mutants.toml", "eval")

    def change(m: Mutation) -> None:
        _ACTIONS[action](m, eval(code, {**_NAMES, "m": m}), **more)

    return change


def _statements(lines: str) -> Callable[[Mutation], None]:
    code = compile(lines, "mutants.toml", "exec")

    def change(m: Mutation) -> None:
        exec(code, {**_NAMES, "m": m})

    return change


for _title, _entry in TABLES["rows"].items():
    _rule, _name, *_roles = _title.split()
    (_action,) = _entry.keys() & (_ACTIONS.keys() | {"do"})
    _cases = _entry.pop("cases", application.CASES if _action in _HTTP3 else ())
    _change = _entry.pop(_action)
    mutant(_rule, *_roles, cases=_NAMES[_cases] if isinstance(_cases, str) else _cases, name=_name)(
        _statements(_change) if _action == "do" else _row(_action, _change, **_entry)
    )
