"""links.json: what it says, and a sentence for each mistake in it."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.errors import UsageError
from runner.paths import ROOT
from runner.plan.links import LinksFile, load_links, refuse_shared_ports
from runner.tests.program import bentpipe

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP3VOk5NGiuDOzE49FjV43ENMEkS4Cj3iLUlw4v3wYCd"
GOOD = {
    "schema": 1,
    "hosts": {
        "roof": {"ssh": "ssh://me@[2001:db8::1]:2222", "host_key": HOST_KEY + " a comment", "roles": ["client"]},
        "other": {"ssh": "ssh://me@198.51.100.7", "host_key": HOST_KEY},
    },
    "links": {
        "astra": {"client": "roof", "forward_rate": 20_000_000, "return_rate": 2_000_000, "families": [4]},
        "roof2": {"client": "other", "forward_rate": 1, "return_rate": 1, "udp_port": 4433, "probe_port": 4434},
    },
}

Change = Callable[[dict[str, Any]], object]


def _file(path: Path, change: Change = lambda _: None) -> Path:
    document = copy.deepcopy(GOOD)
    change(document)
    path.write_text(json.dumps(document))
    return path


def test_a_file_becomes_links(tmp_path: Path) -> None:
    links = load_links(_file(tmp_path / "links.json"))
    link = links["astra"]
    assert (link.client.user, link.client.address, link.client.port) == ("me", "2001:db8::1", 2222)
    assert link.client.host_key == HOST_KEY
    assert (link.server, link.udp_port, link.families) == (None, 443, (4,))
    assert links["roof2"].client.port == 22


def test_the_example_is_valid_but_for_its_keys(tmp_path: Path) -> None:
    document = json.loads((ROOT / "links.example.json").read_text())
    for host in document["hosts"].values():
        del host["key"]
    (tmp_path / "links.json").write_text(json.dumps(document))
    assert set(load_links(tmp_path / "links.json")) == {"astra", "eutelsat", "starlink"}


def test_the_file_is_not_kept_in_the_repository() -> None:
    assert "links.json" in (ROOT / ".gitignore").read_text().splitlines()


def _host(**more: object) -> Change:
    return lambda document: document["hosts"]["roof"].update(more)


def _link(**more: object) -> Change:
    return lambda document: document["links"]["astra"].update(more)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda document: document.update(schema=2), "field 'schema'"),
        (lambda document: document.update(links={}), "field 'links'"),
        (lambda document: document["links"].update({"A b": GOOD["links"]["astra"]}), "small letters"),  # type: ignore[index]
        (_host(ssh="me@roof"), "'me@roof' is not a host: write ssh://USER@ADDRESS"),
        (_host(ssh="ssh://roof"), "write ssh://USER@ADDRESS"),
        (_host(ssh="ssh://me@roof:port"), "write ssh://USER@ADDRESS"),
        (_host(ssh="ssh://me@roof:0"), "write ssh://USER@ADDRESS"),
        (_host(ssh="ssh://me@ro of"), "write ssh://USER@ADDRESS"),
        (_host(ssh="ssh://me@roof/home"), "write ssh://USER@ADDRESS"),
        (_host(ssh="ssh://me:secret@roof"), "a password in an SSH URL"),
        (_host(host_key="AAAA"), "host_key is not a public key"),
        (_host(host_key="ssh-ed25519 &&&"), "host_key is damaged, or is not a key of type ssh-ed25519"),
        (_host(host_key="ssh-ed25519 AAAAB3NzaC1yc2E="), "host_key is damaged"),
        (_host(host_key=HOST_KEY[:-12]), "host_key is damaged"),
        (_host(key="/"), "key '/' is a folder"),
        (_host(key="/no/such/key"), "there is no private key /no/such/key: make one with `ssh-keygen"),
        (_host(docker_socket="docker.sock"), "not an absolute path"),
        (_host(roles=["server"]), "host 'roof' can't be the client: its roles are server"),
        (_host(agent=True), "field 'hosts.roof.agent' is not known: there are ssh, host_key, key"),
        (_link(foward_rate=1), "field 'links.astra.foward_rate' is not known: did you mean forward_rate?"),
        (
            lambda document: document["links"]["astra"].pop("return_rate"),
            "'links.astra.return_rate' is missing: write a whole number, without quotes (bit/s).",
        ),
        (lambda document: document.update(links=[GOOD["links"]]), "field 'links': write an object, { … }."),
        (_link(quiet_hours="18:00-23:00"), 'is "18:00-23:00": write a list, [ … ].'),
        (_link(client="rof"), "there is no host 'rof'. Choices: roof, other"),
        (_link(client="other", server="other"), "client and server are the same host"),
        (_link(server="roof"), "host 'roof' can't be the server"),
        (_link(forward_rate=0), "field 'links.astra.forward_rate'"),
        (_link(forward_rate="20 Mbit/s"), 'is "20 Mbit/s": write a whole number, without quotes (bit/s).'),
        (
            _link(forward_rate="20000000"),
            "'links.astra.forward_rate' is \"20000000\": write a whole number, without quotes",
        ),
        (_link(forward_rate=0.5), "'links.astra.forward_rate' is 0.5: write a whole number"),
        (_link(forward_rate=10**400), "…: write a number with at most 18 digits."),
        (_link(forward_rate=10**13), "is 10000000000000: write a number of at most 1000000000000 (bit/s)."),
        (_link(budget_per_day=-1), "field 'links.astra.budget_per_day' is -1: write a number above 0 (bytes)."),
        (_link(timeout=float("inf")), "field 'links.astra.timeout' is Infinity"),
        (_link(families=[5]), "field 'links.astra.families[0]' is 5: write 4 or 6."),
        (_link(provider=5), "field 'links.astra.provider' is 5: write text, in quotes, \"…\"."),
        (_link(udp_port=70000), "field 'links.astra.udp_port'"),
        (_link(udp_port=57833), "both 57833"),
        (_link(server_addresses=["roof"]), "'roof' is not an IP address"),
        (_link(families=[6], server_addresses=["192.0.2.1"]), "no address of its families: add one of IPv6"),
        (_link(interface="eth 1"), "interface 'eth 1' is not the name of an interface: copy it from `ip link`"),
        (_link(server_interface="a" * 16), "server_interface"),
        (_link(abbreviation="a,b"), "abbreviation 'a,b' is not valid"),
        (_link(quiet_hours=["22:00-10:00", "09:00-22:00"]), "quiet_hours cover the whole day"),
        (_link(quiet_hours=["18-23"]), "'18-23' is not a span"),
        (_link(budget_per_day=10, budget_per_month=9), "larger than budget_per_month"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_place(tmp_path: Path, change: Change, sentence: str) -> None:
    path = _file(tmp_path / "links.json", change)
    with pytest.raises(UsageError) as caught:
        load_links(path)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def _types(field: dict[str, Any]) -> set[str]:
    return {choice["type"] for choice in (field, field.get("items", {}), *field.get("anyOf", ())) if "type" in choice}


FIELDS = {
    name: _types(field)
    for name, field in LinksFile.model_json_schema(by_alias=True)["$defs"]["_Link"]["properties"].items()
}
NUMBERS = [name for name, types in FIELDS.items() if types & {"integer", "number"}]


def test_the_schema_has_the_numbers_of_a_link() -> None:
    assert {"forward_rate", "return_rate", "families", "udp_port", "budget_per_day", "timeout"} <= set(NUMBERS)
    assert not any(FIELDS[name] & {"string", "boolean"} for name in NUMBERS)
    assert [name for name, types in FIELDS.items() if "boolean" in types] == ["ssh_over_link"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["4", True, False])
def test_text_and_truth_are_no_numbers_as_the_schema_says(tmp_path: Path, name: str, value: object) -> None:
    wrong = [value] if name == "families" else value
    with pytest.raises(UsageError, match=rf"field 'links\.astra\.{name}(\[0\])?' is {json.dumps(value)}: write"):
        load_links(_file(tmp_path / "links.json", _link(**{name: wrong})))


def test_a_number_without_a_fraction_is_whole_however_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    path.write_text(json.dumps(GOOD).replace("20000000", "2e7"))
    assert load_links(path)["astra"].forward_rate == 20_000_000
    for value in (1, "true"):
        with pytest.raises(UsageError, match=r"ssh_over_link' is .*: write true or false, without quotes"):
            load_links(_file(path, _link(ssh_over_link=value)))


def test_the_command_says_the_sentence_and_ends_with_2(tmp_path: Path) -> None:
    links = _file(tmp_path / "links.json", _link(forward_rate="20000000"))
    process = bentpipe("plan", "--link", "astra", "--links", str(links))
    assert process.returncode == 2
    assert 'is "20000000": write a whole number, without quotes (bit/s).' in " ".join(process.stderr.split())


def test_a_real_link_is_not_called_as_an_emulated_one(tmp_path: Path) -> None:
    def renamed(document: dict[str, Any]) -> None:
        document["links"]["geo"] = document["links"].pop("roof2")

    links = str(_file(tmp_path / "links.json", renamed))
    both = [bentpipe("plan", "--link", name, "--links", links) for name in ("geo", "astra")]
    assert "links.json, link 'geo': that is the name of an emulated link: give it another name." in both[1].stderr
    assert [process.returncode for process in both] == [0, 2]


def test_a_missing_file_and_one_that_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"copy links\.example\.json to it"):
        load_links(tmp_path / "links.json")
    for text in ("{", "[" * 100_000):
        (tmp_path / "links.json").write_text(text)
        with pytest.raises(UsageError, match="is not JSON"):
            load_links(tmp_path / "links.json")


def test_a_name_that_stands_twice_is_told_and_a_byte_order_mark_is_not(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    text = json.dumps(GOOD)
    path.write_text(text.replace('"astra": {', '"roof2": {'))
    with pytest.raises(UsageError, match=r"links\.json: 'roof2' appears 2 times in one object"):
        load_links(path)
    path.write_text(text, "utf-8-sig")
    assert set(load_links(path)) == {"astra", "roof2"}


def test_keys_that_others_may_read_are_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("")
    key.chmod(0o644)
    with pytest.raises(UsageError, match=f"run `chmod 600 {key}`"):
        load_links(_file(tmp_path / "links.json", _host(key=str(key))))
    public = tmp_path / "key.pub"
    public.write_text("")
    public.chmod(0o600)
    with pytest.raises(UsageError, match="is the public key: name the private key"):
        load_links(_file(tmp_path / "links.json", _host(key=str(public))))


def test_links_that_run_at_once_need_ports_of_their_own(tmp_path: Path) -> None:
    links = load_links(_file(tmp_path / "links.json", lambda document: document["links"]["roof2"].update(udp_port=443)))
    with pytest.raises(UsageError, match="'astra' and 'roof2' both need UDP port 443 of this host"):
        refuse_shared_ports(links.values())
