"""Files of strangers: implementations.json, links.json, night.json and emulated-links.json say what they do."""

import json
from pathlib import Path
from typing import Any

import docker
import pytest

from runner.errors import SetupError, UsageError
from runner.images import images, pulling
from runner.images import images as building
from runner.images import images as image_facts
from runner.images.images import Image, images_of
from runner.nights.night import load_night, publish
from runner.paths import ROOT
from runner.plan.catalog import load_catalog
from runner.plan.links import load_emulated_links, load_links

ENTRY = {"image": "example/quic", "url": "https://example.org", "roles": ["client"]}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


def _stacks(folder: Path, entry: dict[str, Any], name: str = "mine", section: str = "implementations") -> Path:
    path = folder / "stacks.json"
    document: dict[str, Any] = {"schema": 1, "implementations": {"other": ENTRY}}
    document.setdefault(section, {})[name] = (ENTRY if section == "implementations" else {}) | entry
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("section", ["implementations", "middleboxes"])
@pytest.mark.parametrize(
    "image",
    [
        *("bentpipe/tools", "bentpipe/tools:latest", "bentpipe/sim:5", "bentpipe/guest", "bentpipe/base:trixie"),
        *("bentpipe/endpoint", "bentpipe/go", "bentpipe/rust", "bentpipe/carrier", "bentpipe/quinn"),
        *("docker.io/bentpipe/tools", "index.docker.io/bentpipe/tools", "bentpipe/new"),
    ],
)
def test_own_images_are_not_built_from_other_folders(tmp_path: Path, image: str, section: str) -> None:
    (tmp_path / "evil").mkdir()
    path = _stacks(tmp_path, {"image": image, "build": "evil"}, section=section)
    with pytest.raises(UsageError, match="belong to the images of bentpipe itself"):
        load_catalog(path)


@pytest.mark.parametrize("image", ["bentpipe/tools", "docker.io/bentpipe/quinn", "bentpipe/quinn@sha256:" + "0" * 64])
def test_own_images_are_not_pulled_either(tmp_path: Path, image: str) -> None:
    with pytest.raises(UsageError, match="belong to the images of bentpipe itself"):
        load_catalog(_stacks(tmp_path, {"image": image}))


def test_an_image_of_the_list_may_have_another_name(tmp_path: Path) -> None:
    assert (
        load_catalog(_stacks(tmp_path, {"image": "bentpipe/quinn"})).implementations["mine"].image == "bentpipe/quinn"
    )


@pytest.mark.parametrize("image", ["a b", "--tag", "x/y:a:b", "x/$(id)", "x/y@sha256:1", "../x", "x/Y", ""])
def test_an_image_has_the_name_of_an_image(tmp_path: Path, image: str) -> None:
    with pytest.raises(UsageError, match="image"):
        load_catalog(_stacks(tmp_path, {"image": image}))


def test_only_folders_beside_the_file_are_built(tmp_path: Path) -> None:
    inside, outside = tmp_path / "mine", tmp_path / "outside"
    for folder in (inside / "stack", outside):
        folder.mkdir(parents=True)
        (folder / "Dockerfile").write_text("FROM scratch\n")
    (inside / "link").symlink_to(outside)
    (inside / "stack" / "up").symlink_to("/etc")
    assert load_catalog(_stacks(inside, {"build": "stack"})).implementations["mine"].build == str(inside / "stack")
    for build in (str(outside), "../outside", "link", "stack/../../outside", "stack/up", "/etc"):
        with pytest.raises(UsageError, match="only folders in"):
            load_catalog(_stacks(inside, {"build": build}))


def test_folders_of_this_project_are_built_beside_another_file(tmp_path: Path) -> None:
    path = _stacks(tmp_path, {"build": "implementations/quinn"})
    assert load_catalog(path).implementations["mine"].build == str(ROOT / "implementations" / "quinn")
    with pytest.raises(UsageError, match="only folders in"):
        load_catalog(_stacks(tmp_path, {"build": "sim"}))


@pytest.mark.parametrize("file", ["Dockerfile", ".dockerignore"])
def test_a_dockerfile_is_in_its_folder(tmp_path: Path, file: str) -> None:
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "stack" / file).unlink(missing_ok=True)
    (tmp_path / "elsewhere").write_text("FROM scratch\n")
    (tmp_path / "stack" / file).symlink_to(tmp_path / "elsewhere")
    stack = load_catalog(_stacks(tmp_path, {"build": "stack"})).implementations["mine"]
    with pytest.raises(UsageError, match="leads out of its folder"):
        images_of([stack])


def test_a_stack_does_not_replace_an_image_from_which_ours_start(tmp_path: Path) -> None:
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "Dockerfile").write_text("FROM scratch\n")
    parents = [tag for tag in images._parents(ROOT) if not tag.startswith("bentpipe/")]
    for tag in parents:
        stack = load_catalog(_stacks(tmp_path, {"build": "stack", "image": tag})).implementations["mine"]
        with pytest.raises(UsageError, match="images of bentpipe start from it"):
            images_of([stack])


def test_a_parent_is_not_looked_for_outside_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "Dockerfile").write_text("FROM bentpipe/../../../tmp/x\nCOPY --from=bentpipe/.. / /\n")
    stack = load_catalog(_stacks(tmp_path, {"build": "stack"})).implementations["mine"]
    known = images_of([])
    assert {image.tag for image in images_of([stack])} == {"example/quic", *(image.tag for image in known)}


@pytest.mark.docker
def test_a_build_does_not_replace_an_image_that_bentpipe_did_not_build(tmp_path: Path) -> None:
    client = docker.from_env()
    (tmp_path / "Dockerfile").write_text("FROM scratch\nLABEL a=b\n")
    tag = "bentpipe-test/somebodys"
    built, _ = client.images.build(path=str(tmp_path), tag=tag, rm=True)
    try:
        with pytest.raises(SetupError, match="bentpipe did not build it"):
            building.build(client, [Image(tag=tag, context=tmp_path)], report=lambda _: None)
        assert client.images.get(tag).id == built.id
        assert "never pulled" in pulling._attempt(client, "bentpipe/absent", lambda _: None, 1.0)
        with pytest.raises(UsageError, match=r"run `./bentpipe build absent`, or correct the name\."):
            image_facts.image_facts(client, "bentpipe/absent")
    finally:
        client.images.remove(tag)


@pytest.mark.parametrize("name", ["a/b", "..", ".x", "a\\b", "a" * 121, "", "a_b", "a b"])
def test_a_name_is_the_name_of_a_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="can't be a name"):
        load_catalog(_stacks(tmp_path, {}, name=name))


@pytest.mark.parametrize("knob", ["LD_PRELOAD", "LD_LIBRARY_PATH", "DOCKER_HOST", "PATH", "ROLE", "GATEWAY_ADDRESS"])
def test_a_middlebox_does_not_set_variables_of_others(tmp_path: Path, knob: str) -> None:
    with pytest.raises(UsageError, match=f"'{knob}' is set by bentpipe"):
        load_catalog(_stacks(tmp_path, {"image": "example/box", "knobs": {knob: "a|b"}}, section="middleboxes"))


def _links(folder: Path, **host: str) -> Path:
    path = folder / "links.json"
    described = {"ssh": "ssh://a@192.0.2.1", "host_key": KEY, **host}
    link = {"client": "roof", "forward_rate": 1_000_000, "return_rate": 1_000_000}
    path.write_text(json.dumps({"schema": 1, "hosts": {"roof": described}, "links": {"sky": link}}))
    return path


@pytest.mark.parametrize("socket", ["/a:/b", "/etc:/x:rw,z", "/run/../etc", "/a b", "relative", "/", "/a\tb", "/a/.."])
def test_the_socket_of_a_host_is_one_path(tmp_path: Path, socket: str) -> None:
    with pytest.raises(UsageError):
        load_links(_links(tmp_path, docker_socket=socket))
    assert load_links(_links(tmp_path, docker_socket="/run/user/1000/docker.sock"))


def _night(folder: Path, **fields: Any) -> Path:
    path = folder / "night.json"
    run = {"name": "sat", "options": "--case sat"}
    path.write_text(json.dumps({"schema": 1, "runs": [run], **fields}))
    return path


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "a b"},
        {"name": "%h"},
        {"name": "../x"},
        {"name": "a@b"},
        {"before": {"build": ["--extra-cas=/etc"]}},
        {"before": {"pull": ["-y"]}},
        {"publish": ["-e sh -c id:x"]},
        {"publish": [""]},
        {"publish": ["file:///etc"]},
        {"publish": ["local:///etc"]},
        {"publish": ["simplecache::file:///etc"]},
        {"publish": ["git+ext::sh -c id#main"]},
        {"tell": [{"webhook": "file:///etc/passwd"}]},
        {"tell": [{"mail": "-oQ/tmp x@y"}]},
    ],
)
def test_a_night_does_what_it_says(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        load_night(_night(tmp_path, **fields))


@pytest.mark.parametrize("beside", ["", ".old", ".new"])
def test_a_site_replaces_only_a_site(tmp_path: Path, beside: str) -> None:
    site, target = tmp_path / "site", tmp_path / "www"
    site.mkdir()
    (site / ".bentpipe-site").touch()
    photos = tmp_path / f"www{beside}"
    photos.mkdir()
    (photos / "wedding.jpg").touch()
    with pytest.raises(SetupError, match="other files than a site"):
        publish(site, str(target), work=tmp_path / "work")
    assert (photos / "wedding.jpg").exists()


@pytest.mark.parametrize("hidden", ["\x1b[2J", "\u202e", "\u2066", "\x00", "\x7f", "\x9b", "\ud800"])
def test_no_text_of_a_file_is_shown_as_something_else(tmp_path: Path, hidden: str) -> None:
    for entry in ({"note": f"a{hidden}b"}, {"receive_window": {"a": [f"{hidden}"]}}, {"image": f"x/y{hidden}"}):
        with pytest.raises(UsageError, match="which is not shown"):
            load_catalog(_stacks(tmp_path, entry))
    with pytest.raises(UsageError, match="which is not shown"):
        load_catalog(_stacks(tmp_path, {}, name=f"a{hidden}"))
    with pytest.raises(UsageError, match="which is not shown"):
        load_night(_night(tmp_path, name=hidden))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-1", "61"])
def test_a_link_has_possible_numbers(tmp_path: Path, number: str) -> None:
    way = f'{{"data_rate": 1000000, "delay": {number}, "queue": {{"packets": 10}}}}'
    path = tmp_path / "links.json"
    path.write_text(f'{{"schema": 1, "links": {{"a": {{"segments": [{{"forward": {way}, "return": {way}}}]}}}}}}')
    with pytest.raises(UsageError) as error:
        load_emulated_links(path)
    assert len(str(error.value).splitlines()) == 1


def test_a_file_is_small(tmp_path: Path) -> None:
    path = tmp_path / "endless.json"
    path.symlink_to("/dev/zero")
    for load in (load_catalog, load_links, load_night, load_emulated_links):
        with pytest.raises(UsageError, match="larger than 4 MiB"):
            load(path)
