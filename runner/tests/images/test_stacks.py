"""The stacks that `build` chooses, the output of `build` and `list`, and files that must not be in an image."""

import io
from dataclasses import replace

import pytest
from docker.errors import ImageNotFound
from rich.console import Console

from runner.cli import host_commands as stacks
from runner.engine import engine
from runner.errors import UsageError
from runner.images.images import Build, BuildDisplay, Event, ImageState, images_of
from runner.model.stack import Implementation, Role
from runner.plan.catalog import Catalog, load_catalog
from runner.terminal.printing import cases_table, emulated_links_table, knobs_table, middleboxes_table
from testcases.links import LINKS

COMPILERS = (
    "cc",
    "gcc",
    "g++",
    "c++",
    "clang",
    "ld",
    "as",
    "rustc",
    "cargo",
    "go",
    "javac",
    "cmake",
    "make",
    "pip",
    "git",
)


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    return load_catalog()


def test_build_makes_what_is_built_here_and_pull_fetches_what_is_published(shipped: Catalog) -> None:
    built = [stack.name for stack in stacks.choose_stacks(shipped, [], pull=False)]
    assert {"quic-go", "quinn", "aioquic", "plain", "pep-split"} <= set(built)
    assert not {"mvfst", "quic-go-public", "quant"} & set(built)
    pulled = [stack.name for stack in stacks.choose_stacks(shipped, [], pull=True)]
    assert {"mvfst", "quic-go-public", "chrome"} <= set(pulled)
    assert not {"quic-go", "quant", "quicly"} & set(pulled)
    for names, pull, chosen in (
        (["quant,mvfst"], True, ["mvfst", "quant"]),
        (["quinn", "quic-go"], False, ["quic-go", "quinn"]),
        (["openvpn", "quinn"], False, ["quinn", "openvpn"]),
    ):
        assert [stack.name for stack in stacks.choose_stacks(shipped, names, pull=pull)] == chosen


def test_a_middlebox_is_built_from_its_own_folder(shipped: Catalog) -> None:
    gateway_alone = stacks.choose_stacks(shipped, ["pep-split-gateway"], pull=False)
    assert "bentpipe/middlebox-pep-split" in {image.tag for image in images_of(gateway_alone)}
    both = stacks.choose_stacks(shipped, ["qpep"], pull=False)  # qpep is a stack and a middlebox with the same image
    assert [image.tag for image in images_of(both)].count("bentpipe/qpep") == 1


@pytest.mark.parametrize(
    ("name", "pull", "sentence"),
    [
        ("mvfst", False, "mvfst is a published image: run `./bentpipe build --pull mvfst`."),
        (
            "quic-go",
            True,
            "quic-go is built here: run `./bentpipe build quic-go`; the published image is quic-go-public.",
        ),
        ("mvsft", True, "There is no stack or middlebox 'mvsft'. Choices: quic-go, "),
    ],
)
def test_name_of_the_other_kind_is_one_sentence(shipped: Catalog, name: str, pull: bool, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        stacks.choose_stacks(shipped, [name], pull=pull)
    assert str(caught.value).startswith(sentence)


def test_an_unknown_name_is_told_the_middleboxes_too(shipped: Catalog) -> None:
    with pytest.raises(UsageError) as caught:
        stacks.choose_stacks(shipped, ["opnvpn"], pull=False)
    assert all(f" {name}" in str(caught.value) for name in shipped.middleboxes)


def _printed(*tables: object, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    for table in tables:
        console.print(table)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_list_says_where_each_image_stands() -> None:
    stack = Implementation(name="here", image="b/here", build="x", url="https://example.org", version="1")
    far = replace(stack, name="far", image="p/far:1", build=None)
    every = [
        stack,
        replace(stack, name="missing", image="b/missing", roles=(Role.SERVER,)),
        replace(far, congestion_control="bbr", congestion_implemented=("bbr", "cubic")),
        replace(far, name="gone", image="p/gone", withdrawn=True, hystart=True),
    ]
    sizes = {"b/here": 2 * 1024**2}
    text = _printed(
        stacks.built_table(every[:2], sizes), stacks.published_table(every[2:], sizes, width=140), width=140
    )
    words = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert "2 MiB" in words["here"]
    assert "not built" in words["missing"]
    assert "server" in words["missing"]
    assert "not pulled" in words["far"]
    assert words["far"].split()[2:4] == ["bbr", "cubic"]
    assert "p/far:1" in words["far"]
    assert "withdrawn" in words["gone"]
    assert "no engine" in _printed(stacks.built_table(every[:1], None))


def test_list_breaks_no_word_at_80_columns(shipped: Catalog) -> None:
    every = list(shipped.implementations.values())
    built, published = (
        stacks.built_table([stack for stack in every if stack.build is not None], None),
        stacks.published_table([stack for stack in every if stack.build is None], None, width=80),
    )
    lines = _printed(
        built, published, cases_table(case.record() for case in shipped.cases.values()), width=80
    ).splitlines()
    for stack in every:
        assert any(line.split()[:1] == [stack.name] for line in lines), stack.name
        if stack.build is not None:
            (line,) = (line for line in lines if line.split()[:1] == [stack.name])
            assert {stack.version, stack.congestion_control} - {""} <= set(line.split()), line
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line]
    assert sum(line.split()[0] in shipped.cases for line in lines if line.split()) == len(shipped.cases)


def test_list_has_the_middleboxes_and_links_at_80_columns_too(shipped: Catalog) -> None:
    sizes = {"bentpipe/middlebox-plain": 2 * 1024**2}
    where = {name: stacks.where(box.as_stack(), sizes) for name, box in shipped.middleboxes.items()}
    assert (where["plain"], where["openvpn"]) == ("2 MiB", "not built")
    boxes = middleboxes_table(shipped.middleboxes.values(), where)
    links = emulated_links_table(LINKS)
    lines = _printed(boxes, knobs_table(shipped.knobs), links, width=80).splitlines()
    assert not [line for line in lines if "…" in line]
    assert any(line.split() == ["qpep", "CCA", "bbr|cubic|newreno"] for line in lines)
    rows = {line.split()[0]: line for line in _printed(boxes, width=80).splitlines() if line.split()}
    assert all(words in rows[name] for name, words in where.items())


def test_display_counts_and_tells_the_time_left_without_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=120)
    builds = {tag: Build(seconds=100, steps=4, reused=0) for tag in ("a", "b")}
    with BuildDisplay(console, todo=["a", "b", "c"], builds=builds) as display:
        display(Event(tag="base", state=ImageState.CURRENT))
        display(Event(tag="a", state=ImageState.WORKING))
        display(Event(tag="c", state=ImageState.WORKING, step=1, steps=3, text="FROM [x]"))
        display(Event(tag="c", state=ImageState.FAILED))
        display(Event(tag="a", state=ImageState.BUILT))
        display(Event(tag="b", state=ImageState.SKIPPED))
    file = console.file
    assert isinstance(file, io.StringIO)
    lines = file.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "building a",
        "building c",
        "✗ c failed",
        "✓ a built",
        "✗ b not built (3 of 3)",
    ]
    assert lines[2].endswith("ms (1 of 3; at most about 1 min 40 s left)")
    assert lines[3].endswith("ms (2 of 3; at most about 1 min 40 s left)")


@pytest.mark.docker
@pytest.mark.slow
def test_runtime_images_carry_no_compilers(shipped: Catalog) -> None:
    client = engine.connect()
    script = f"for tool in {' '.join(COMPILERS)}; do command -v $tool; done; true"
    outcome, looked = {}, 0
    for stack in shipped.implementations.values():
        if stack.build is not None:
            try:
                image = client.images.get(stack.image)  # `run` would try to pull what is not built
            except ImageNotFound:
                continue
            output = client.containers.run(image, ["-c", script], entrypoint="sh", network_mode="none", remove=True)
            looked += 1
            if output.strip():
                outcome[stack.name] = output.decode().split()
    assert looked
    assert outcome == {}
