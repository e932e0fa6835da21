"""Real builds of images without a file system below: order, reuse, what a failure leaves, what is remembered."""

import random
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import ImageNotFound

from runner.engine import engine
from runner.errors import SetupError
from runner.images import images, pulling
from runner.images import images as building
from runner.images.images import Build, BuildHistory, Event, Image, ImageState, time_left


@pytest.fixture(scope="module")
def client() -> docker.DockerClient:
    return engine.connect()


@pytest.fixture
def prefix(client: docker.DockerClient) -> Iterator[str]:
    """A name for the images of one test; what was built is removed."""
    name = f"bentpipe/test-{random.getrandbits(32):08x}"
    yield name
    made = [tag for image in client.images.list() for tag in image.tags if tag.startswith(name)]
    for tag in sorted(made):  # "above" comes before the images that are built on it
        client.images.remove(tag)


def dockerfile(folder: Path, name: str, *lines: str) -> Path:
    made = folder / name
    made.mkdir()
    (made / "Dockerfile").write_text("\n".join(lines) + "\n")
    (made / "file").write_text(f"{name} {random.getrandbits(64)}\n")
    return made


@pytest.mark.docker
def test_builds_parents_first_and_only_what_changed(client: docker.DockerClient, prefix: str, tmp_path: Path) -> None:
    below, other, above = (f"{prefix}-{name}" for name in ("below", "other", "above"))
    required = [
        Image(tag=above, context=dockerfile(tmp_path, "above", f"FROM {below}", f"COPY --from={other} /file /other")),
        Image(tag=below, context=dockerfile(tmp_path, "below", "FROM scratch", "COPY file /file")),
        Image(tag=other, context=dockerfile(tmp_path, "other", "FROM scratch", "COPY file /file")),
    ]
    assert set(images.states(client, required).values()) == {ImageState.MISSING}

    events: list[Event] = []
    first = building.build(client, required, report=events.append)
    built = [event.tag for event in events if event.state is ImageState.BUILT]
    assert sorted(built) == sorted([above, below, other])
    assert built[-1] == above
    steps = [(event.step, event.steps) for event in events if event.tag == other and event.step]
    assert steps == [(1, 3), (2, 3), (3, 3)]

    events.clear()
    assert building.build(client, required, report=events.append) == first
    assert {event.state for event in events} == {ImageState.CURRENT}

    (tmp_path / "below" / "file").write_text(f"{random.getrandbits(64)}\n")
    assert images.states(client, required) == {
        below: ImageState.STALE,
        above: ImageState.STALE,
        other: ImageState.CURRENT,
    }
    second = building.build(client, required, report=events.append)
    assert second[other] == first[other]
    assert second[below] != first[below]
    assert second[above] != first[above]
    with pytest.raises(ImageNotFound):
        client.images.get(first[above])


@pytest.mark.docker
def test_failing_build_names_image_step_and_reason(client: docker.DockerClient, prefix: str, tmp_path: Path) -> None:
    context = dockerfile(tmp_path, "bad", "FROM scratch", "COPY absent /file")
    events: list[Event] = []
    with pytest.raises(SetupError) as caught:
        building.build(client, [Image(tag=prefix, context=context)], report=events.append)
    sentence = str(caught.value)
    assert sentence.startswith(f"The image {prefix} doesn't build: step 2 of 3 (`COPY absent /file`) failed")
    assert "absent" in sentence.split("failed", 1)[1]
    assert events[-1].state is ImageState.FAILED
    assert caught.value.exit_code == 3


@pytest.mark.docker
def test_failing_command_is_told_with_its_last_lines(client: docker.DockerClient, prefix: str, tmp_path: Path) -> None:
    tag = pulling.obtain(client)
    context = dockerfile(tmp_path, "bad", f"FROM {tag}", "RUN seq 1 40 >&2 && exit 7")
    with pytest.raises(SetupError) as caught:
        building.build(client, [Image(tag=prefix, context=context)], report=lambda _: None)
    first, *log = str(caught.value).splitlines()
    assert first.endswith("step 2 of 3 (`RUN seq 1 40 >&2 && exit 7`) failed with exit code 7. Its last lines:")
    assert log == [str(number) for number in range(26, 41)]


@pytest.mark.docker
def test_a_version_that_a_mirror_dropped_has_a_fix(client: docker.DockerClient, prefix: str, tmp_path: Path) -> None:
    text = "E: Version '1:6.14.2-1' for 'ethtool' was not found"
    context = dockerfile(tmp_path, "gone", "FROM bentpipe/base:trixie", f'RUN echo "{text}" && exit 100')
    with pytest.raises(SetupError) as caught:
        building.build(client, [Image(tag=prefix, context=context)], report=lambda _: None)
    assert "put the version that `apt-cache policy ethtool` names there into the Dockerfile" in str(caught.value)


@pytest.mark.docker
def test_a_mirror_without_the_kernel_source_has_a_mend(
    client: docker.DockerClient, prefix: str, tmp_path: Path
) -> None:
    """apt itself prints the error, for a source that no mirror has."""
    install = "RUN apt-get update -qq && apt-get install -y linux-source-0.1/trixie-backports"
    context = dockerfile(tmp_path, "gone", "FROM bentpipe/base:trixie", install)
    with pytest.raises(SetupError) as caught:
        building.build(client, [Image(tag=prefix, context=context)], report=lambda _: None)
    assert "The mirror has no linux-source-0.1, the kernel source of virtual time: use a mirror" in str(caught.value)


@pytest.mark.docker
def test_failure_leaves_the_work_of_the_others(client: docker.DockerClient, prefix: str, tmp_path: Path) -> None:
    bad, above, good, worse = (f"{prefix}-{name}" for name in ("bad", "above", "good", "worse"))
    required = [
        Image(tag=bad, context=dockerfile(tmp_path, "bad", "FROM scratch", "COPY absent /file")),
        Image(tag=above, context=dockerfile(tmp_path, "above", f"FROM {bad}", "COPY file /file")),
        Image(tag=worse, context=dockerfile(tmp_path, "worse", "FROM nowhere.invalid/x")),
        Image(tag=good, context=dockerfile(tmp_path, "good", "FROM scratch", "COPY file /file")),
    ]
    events: list[Event] = []
    with pytest.raises(SetupError) as caught:
        building.build(client, required, report=events.append, parallel=1)
    last = {event.tag: event.state for event in events}
    assert last == {bad: ImageState.FAILED, above: ImageState.SKIPPED, worse: ImageState.FAILED, good: ImageState.BUILT}
    assert images.held(client, good) is not None
    *reasons, failed, skipped = str(caught.value).splitlines()
    assert any(line.startswith(f"The image {bad} doesn't build: step 2 of 3") for line in reasons)
    assert any(line.startswith(f"The image {worse} doesn't build: step 1 of 2") for line in reasons)
    assert failed == f"2 images failed: {bad}, {worse}."
    assert skipped == f"Not built, because they are based on a failed image: {above}."


@pytest.mark.docker
def test_full_build_is_remembered_and_one_that_reused_layers_does_not_replace_it(
    client: docker.DockerClient, prefix: str, tmp_path: Path
) -> None:
    context = dockerfile(tmp_path, "one", "FROM scratch", "COPY file /file", "COPY file /second")
    history = BuildHistory(tmp_path / "builds.json")

    def build() -> Event:
        events: list[Event] = []
        building.build(client, [Image(tag=prefix, context=context)], report=events.append)
        for event in events:
            history.add(event)
        return events[-1]

    first = build()
    assert (first.state, first.steps, first.reused) == (ImageState.BUILT, 4, 0)
    assert 0 < first.seconds < 60
    recorded = history.builds()
    assert recorded == {prefix: Build(seconds=round(first.seconds, 1), steps=4, reused=0)}
    (context / "unused").write_text("changes the label, and no layer before it\n")
    second = build()
    assert (second.state, second.reused) == (ImageState.BUILT, 2)
    assert history.builds() == recorded


def test_history_that_cannot_be_read_or_written_is_no_history(tmp_path: Path) -> None:
    event = Event(tag="x", state=ImageState.BUILT, steps=3, seconds=1.0)
    (tmp_path / "file").touch()
    away = BuildHistory(tmp_path / "file" / "builds.json")  # no folder can be there
    away.add(event)
    assert away.builds() == {}
    (tmp_path / "builds.json").write_text('{"x": {"minutes": 3}}')
    broken = BuildHistory(tmp_path / "builds.json")
    assert broken.builds() == {}
    broken.add(event)
    assert broken.builds() == {"x": Build(seconds=1.0, steps=3, reused=0)}


BUILDS = {name: Build(seconds=seconds, steps=5, reused=0) for name, seconds in (("a", 10), ("b", 20), ("c", 100))}
BUILDS["reused"] = Build(seconds=1.0, steps=5, reused=3)


@pytest.mark.parametrize(
    ("waiting", "working", "left"),
    [
        (["a"], {}, 10),
        (["a", "b"], {}, 20),  # the longer build decides
        (["a", "b", "c"], {}, 100),
        (["a", "b"], {"c": 40}, 60),
        ([], {"a": 4, "b": 19}, 6),
        (["unknown"], {"a": 4}, None),
        (["b"], {"unknown": 4}, None),
        (["b"], {"a": 11}, None),  # the build already takes longer than the last one, so there is no estimate
        (["reused"], {"a": 4}, None),  # a build with reused layers gives no estimate for a full build
        ([], {}, 0),
    ],
)
def test_time_left_is_told_only_from_recorded_builds(
    waiting: list[str], working: dict[str, float], left: float | None
) -> None:
    assert time_left(BUILDS, waiting=waiting, working=working, parallel=2) == left
