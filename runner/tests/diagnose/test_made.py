"""Diagnoses of transfers that `made.py` makes: the expected diagnosis follows from the settings."""

import struct
from dataclasses import replace
from functools import partial
from operator import eq
from pathlib import Path

import numpy as np
import pytest

from runner.decode.columns import CLIENT
from runner.diagnose.limits import Supply, longest
from runner.diagnose.path import LinkEvents, link_events
from runner.model.link import LinkChange, LinkImpairments
from runner.model.result import DirectionTruth, Limit, LinkTruth
from runner.tests.diagnose.made import Cause, Made
from runner.tests.trace.tables import EPOCH_NS
from runner.trace.recording import first_cover

CLEAN = Cause(cap=300_000)
SPARSE = Cause(ack_every=40, ack_delay=0.15, cap=80_000, initial_window=80_000)
CAUSES = {
    "clean": (CLEAN, set()),
    "receive window": (Cause(receive_window=100_000, cap=100_000), {"receive-window"}),
    "slow start capped": (Cause(cap=60_000), {"slow-start-left-early"}),
    "initial window for ever": (Cause(cap=14_000, size=400_000), {"window-never-grew"}),
    "stall": (replace(CLEAN, stall=(1.0, 1.0)), {"application-idle"}),
    "collapse": (replace(CLEAN, shrink=(1.0, 1e9, 12_000)), {"rate-collapse"}),
    "losses": (replace(CLEAN, lost=lambda number: number % 40 == 20, size=400_000), {"window-after-loss"}),
    "losses, and nothing in flight at times": (
        replace(CLEAN, lost=lambda number: number % 40 == 20, size=400_000, slow=0.06),
        {"window-after-loss"},
    ),
    "a loss ends the growth": (replace(CLEAN, lost=partial(eq, 40), kept=1.0, size=800_000), {"window-after-loss"}),
    "losses do not change an initial window": (
        Cause(cap=14_000, kept=1.0, lost=lambda number: number % 97 == 20, size=800_000),
        {"window-never-grew"},
    ),
    "frequent losses do not change an initial window": (
        Cause(cap=14_000, kept=1.0, lost=lambda number: number % 12 == 5 and number < 280, size=400_000),
        {"window-never-grew"},
    ),
    "losses do not change a window that had grown": (
        Cause(cap=60_000, kept=1.0, lost=lambda number: number % 97 == 20 and number > 150, size=1_500_000),
        {"slow-start-left-early"},
    ),
    "tail lost": (replace(CLEAN, lost=lambda number: 1060 <= number < 1130), {"retransmitted-tail"}),
    "everything twice": (Cause(twice=True, cap=100_000), {"sent-twice"}),
    "early repeats": (replace(CLEAN, early=5), {"spurious-retransmissions"}),
    "numbers go back": (replace(CLEAN, back=20), {"packet-numbers"}),
    "small datagrams": (Cause(packet=700, cap=200_000), {"small-datagrams"}),
    "1200 B for ever": (Cause(packet=1200, cap=210_000), {"mtu-not-raised"}),
    "an ACK for each": (replace(CLEAN, ack_every=1, ack_size=200), {"dense-acks"}),
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_leads_to_its_diagnosis_and_to_no_other(name: str) -> None:
    cause, codes = CAUSES[name]
    explanation = Made(cause).explained()
    assert {diagnosis.code for diagnosis in explanation.diagnoses} == codes
    for diagnosis in explanation.diagnoses:
        assert 0 <= diagnosis.start < diagnosis.end <= explanation.spans[-1].end + 1
        assert diagnosis.sentence.endswith(".")
    assert sum(explanation.limits.values()) == pytest.approx(1.0)
    assert "unknown" not in explanation.limits


def test_a_window_of_short_datagrams_that_never_grew_may_be_a_buffer_of_the_application() -> None:
    (diagnosis,) = Made(Cause(cap=14_000, size=400_000, probe=1_470)).explained().diagnoses
    assert diagnosis.code == "window-never-grew"
    assert "or a buffer of the application holds no more" in diagnosis.sentence


def test_few_acks_hold_back_a_small_window_and_no_large_one() -> None:
    def found(cause: Cause) -> dict[str, str]:
        return {diagnosis.code: diagnosis.sentence for diagnosis in Made(cause).explained().diagnoses}

    sentences = found(SPARSE)
    assert sentences.keys() == {"window-never-grew", "sparse-acks"}
    assert "one ACK acknowledged 40 of 59 packets in flight" in sentences["sparse-acks"]
    assert found(replace(SPARSE, ack_every=10)).keys() == {"window-never-grew"}
    assert not found(replace(SPARSE, cap=300_000, initial_window=14_000))


def test_the_most_bytes_in_flight_tell_how_a_loss_changed_the_window() -> None:
    ended = Made(CAUSES["a loss ends the growth"][0]).explained().diagnoses
    assert "were in flight 4 RTTs later" in ended[0].sentence
    fell = Made(CAUSES["losses, and nothing in flight at times"][0]).explained().diagnoses
    assert "fell from" in fell[0].sentence
    assert "to 0 B" not in fell[0].sentence


def test_bursts_and_held_datagrams_are_found_beside_what_they_lead_to() -> None:
    bursts = Made(Cause(burst=True, initial_window=60_000, cap=150_000)).explained()
    assert "bursts" in {diagnosis.code for diagnosis in bursts.diagnoses}
    held = Made(replace(CLEAN, held=20)).explained()
    assert "out-of-order" in {diagnosis.code for diagnosis in held.diagnoses} <= {"out-of-order", "window-after-loss"}


def test_the_limit_is_the_one_that_was_set() -> None:
    blocked = Made(CAUSES["receive window"][0]).explained().limits
    assert blocked[Limit.RECEIVE_WINDOW] > 0.7
    capped = Made(CAUSES["slow start capped"][0]).explained().limits
    assert capped[Limit.CONGESTION_WINDOW] > 0.8
    long = Made(replace(CLEAN, size=4_000_000)).explained().limits
    assert long[Limit.LINK] > 0.7
    stalled = Made(CAUSES["stall"][0]).explained()
    idle = [span for span in stalled.spans if span.limit is Limit.APPLICATION]
    # The request arrives at 0.3 s, data stop 1 s later; seen from the client 0.1 s after that. What was under way fills
    # one RTT and the queue first.
    assert 1.4 < idle[0].start < 1.9
    assert idle[-1].end == pytest.approx(2.4, abs=0.1)


@pytest.mark.parametrize(("quantum", "data_rate"), [(20, 10_000_000), (10, 6_000_000)])
def test_the_rests_of_a_pacer_in_slow_start_are_no_lack_of_data(quantum: int, data_rate: int) -> None:
    """ngtcp2 over a satellite: the pacer sends ten packets at once, and ACKs arrive in its rests."""
    cause = Cause(size=1_200_000, data_rate=data_rate, delay=0.325, queue=5000, quantum=quantum, pace=1.0)
    explanation = Made(cause).explained()
    assert explanation.limits.get(Limit.APPLICATION, 0.0) < 0.05
    assert "application-idle" not in {diagnosis.code for diagnosis in explanation.diagnoses}
    assert explanation.limits[Limit.CONGESTION_WINDOW] > 0.5


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param(Cause(cap=700_000, delay=0.3, queue=600, shrink=(3.0, 1.5, 5_600), size=2_500_000), id="once"),
        pytest.param(
            Cause(cap=20_000, delay=0.02, data_rate=2_000_000, shrink=(0.5, 0.2, 5_600), every=0.6), id="many times"
        ),
    ],
)
def test_a_window_that_shrinks_for_a_while_is_no_idle_application(cause: Cause) -> None:
    """BBR's ProbeRTT: the server has data, but lets ACKs pass until few bytes are in flight."""
    explanation = Made(cause).explained()
    assert explanation.limits.get(Limit.APPLICATION, 0.0) < 0.05
    assert "application-idle" not in {diagnosis.code for diagnosis in explanation.diagnoses}
    assert explanation.limits[Limit.CONGESTION_WINDOW] > 0.1


def test_a_long_rest_among_the_rests_of_a_burst_sender_is_the_applications() -> None:
    stalled = Made(Cause(burst=True, initial_window=60_000, cap=150_000, stall=(1.0, 1.5))).explained()
    assert {"bursts", "application-idle"} <= {diagnosis.code for diagnosis in stalled.diagnoses}
    rests = [span for span in stalled.spans if span.limit is Limit.APPLICATION]
    assert max(span.end - span.start for span in rests) > 1.0
    assert stalled.limits[Limit.PACING] > 0.1


def test_a_link_that_delivers_less_than_its_contract_is_still_full() -> None:
    explanation = Made(replace(CLEAN, size=4_000_000, advertised=24_000_000)).explained()
    assert not explanation.diagnoses
    assert explanation.limits[Limit.LINK] > 0.6


@pytest.mark.parametrize("name", ["clean", "receive window", "slow start capped", "losses", "an ACK for each"])
def test_what_a_contract_advertises_changes_nothing(name: str) -> None:
    explanations = [Made(replace(CAUSES[name][0], advertised=rate)).explained() for rate in (1_000_000, 90_000_000)]
    assert explanations[0].spans == explanations[1].spans
    assert explanations[0].diagnoses == explanations[1].diagnoses


@pytest.mark.parametrize("advertised", [400_000, 40_000_000])
def test_a_real_return_link_is_full_where_acks_wait(advertised: int) -> None:
    dense = replace(CLEAN, ack_every=1, ack_size=200, advertised=advertised)
    assert not {diagnosis.code for diagnosis in Made(dense).explained().diagnoses}
    full = Made(replace(dense, back_rate=600_000)).explained()
    assert {diagnosis.code for diagnosis in full.diagnoses} == {"dense-acks", "return-link-full"}


def test_an_application_that_often_writes_a_little_is_no_small_window() -> None:
    explanation = Made(replace(CLEAN, initial_window=100_000, writes=(4_000, 0.01))).explained()
    assert {diagnosis.code for diagnosis in explanation.diagnoses} == {"application-idle"}
    assert explanation.limits[Limit.APPLICATION] > 0.6


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param(
            Cause(writes=(1_000, 0.004), probe=1_400, size=380_000, initial_window=100_000),
            id="less than a datagram, by a probe",
        ),
        pytest.param(
            Cause(writes=(1_350, 0.004), with_ack=20, size=520_000, initial_window=100_000),
            id="nearly a datagram, by ACKs in some",
        ),
        pytest.param(
            Cause(writes=(9 * 1_370 + 1_350, 0.02), cap=300_000, initial_window=150_000), id="nearly ten datagrams"
        ),
        pytest.param(
            Cause(writes=(59 * 1_370 + 1_350, 0.15), cap=300_000, initial_window=150_000, data_rate=6_000_000),
            id="chunks, less than an RTT apart",
        ),
    ],
)
def test_writes_are_seen_whatever_their_size(cause: Cause) -> None:
    explanation = Made(cause).explained()
    assert {diagnosis.code for diagnosis in explanation.diagnoses} == {"application-idle"}
    assert explanation.limits[Limit.APPLICATION] > 0.6


def test_long_writes_take_no_memory_of_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """41 MB of a transfer over 250 Mbit/s lay between two rests."""
    bytes_ = vars(Supply)["_stream_bytes"].func
    monkeypatch.setattr(Supply, "_stream_bytes", property(lambda supply: bytes_(supply) << 32))
    assert Made(Cause(cap=60_000, size=400_000)).explained().limits


def test_datagrams_that_the_stack_takes_for_full_are_no_writes() -> None:
    # It fills 1250 B, although a probe of 1400 B passed; a packet with an ACK holds fewer stream bytes.
    small = Cause(packet=1250, probe=1_400, with_ack=20, cap=14_000, size=400_000)
    explanation = Made(small).explained()
    assert {diagnosis.code for diagnosis in explanation.diagnoses} == {"window-never-grew"}
    assert Limit.APPLICATION not in explanation.limits or explanation.limits[Limit.APPLICATION] < 0.05


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param(Cause(cap=60_000, pieces=32_768), id="writes of 32 KiB, each of which waits for the one before"),
        pytest.param(
            Cause(cap=60_500, fills=True, slow=0.003), id="a slow stack fills the window with a short datagram"
        ),
    ],
)
def test_short_datagrams_of_a_window_that_is_full_are_no_idle_application(cause: Cause) -> None:
    explanation = Made(cause).explained()
    assert {diagnosis.code for diagnosis in explanation.diagnoses} == {"slow-start-left-early"}
    assert explanation.limits[Limit.CONGESTION_WINDOW] > 0.7


def test_small_datagrams_are_the_stacks_own_where_an_ack_lets_them_go() -> None:
    explanation = Made(Cause(packet=700, probe=1_400, with_ack=20, cap=200_000)).explained()
    assert {diagnosis.code for diagnosis in explanation.diagnoses} == {"small-datagrams"}


@pytest.mark.parametrize(("packets", "told"), [(10, False), (20, True)])
def test_a_burst_of_an_initial_window_is_allowed(packets: int, *, told: bool) -> None:
    window = packets * 1_400
    explanation = Made(Cause(burst=True, initial_window=window, cap=window, size=400_000)).explained()
    assert ("bursts" in {diagnosis.code for diagnosis in explanation.diagnoses}) is told


def test_a_window_that_a_needless_repeat_lowered_did_not_leave_slow_start_early() -> None:
    calm = Cause(initial_window=40_000, cap=80_000)
    assert "slow-start-left-early" in {diagnosis.code for diagnosis in Made(calm).explained().diagnoses}
    for repeated in (30, 100):
        repeats = replace(calm, late=partial(eq, repeated))
        codes = {diagnosis.code for diagnosis in Made(repeats).explained().diagnoses}
        assert codes == {"spurious-retransmissions"}  # a single packet, but the window stayed small


@pytest.mark.parametrize(("cap", "code"), [(14_000, "window-never-grew"), (60_000, "slow-start-left-early")])
def test_a_probe_of_data_that_arrived_lowers_no_window(cap: int, code: str) -> None:
    probed = Made(Cause(cap=cap, size=600_000, early=20)).explained()
    assert {diagnosis.code for diagnosis in probed.diagnoses} == {code, "spurious-retransmissions"}


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param(Cause(cap=173_000, initial_window=100_000), id="window of 86 % of the BDP"),
        pytest.param(
            Cause(cap=152_000, initial_window=100_000, data_rate=2_000_000, delay=0.3, size=10**6, advertised=10**7),
            id="real link whose queue is as short as HyStart++ leaves it",
        ),
    ],
)
def test_a_link_that_may_be_full_is_no_sign_of_slow_start_that_ended_early(cause: Cause) -> None:
    assert not Made(cause).explained().diagnoses


@pytest.mark.parametrize(("size", "every"), [(10 * 1_370, 0.017), (12 * 1_370, 0.011)])
def test_writes_of_full_datagrams_leave_acks_unanswered(size: int, every: float) -> None:
    steady = Cause(writes=(size, every), data_rate=24_000_000, size=1_200_000, initial_window=800_000, queue=1_000)
    explanation = Made(steady).explained()
    assert {diagnosis.code for diagnosis in explanation.diagnoses} == {"application-idle"}


def test_spans_follow_each_other_without_a_gap() -> None:
    spans = Made(CLEAN).explained().spans
    assert spans[0].limit is Limit.HANDSHAKE
    assert spans[0].start == 0
    assert [span.start for span in spans[1:]] == [span.end for span in spans[:-1]]


def test_the_first_range_that_covers_a_point_counts() -> None:
    generator = np.random.default_rng(1)
    points = np.sort(generator.choice(400, 150, replace=False))
    first = generator.integers(0, 400, 60)
    last = first + generator.integers(0, 90, 60)
    time = np.sort(generator.random(60))
    expected = [
        min((at for at, a, b in zip(time, first, last, strict=True) if a <= point <= b), default=np.inf)
        for point in points
    ]
    assert first_cover(points, first, last, time).tolist() == expected


def test_the_longest_run_is_found() -> None:
    assert longest(np.array([True, False, True, True, False, True])) == (2, 4)
    assert longest(np.zeros(3, dtype=bool)) == (0, 0)


def test_the_packet_log_names_handovers_and_grants(tmp_path: Path) -> None:
    """Records as the simulator writes them: two packets of the server are lost in a handover, and one of two packets of
    the client waits 0.6 s for its grant."""
    record = struct.Struct("<QIIBBHHH")
    rows = [
        (0.10, 1, 1, 0), (0.10, 2, 1, 0), (0.11, 1, 1, 3), (0.70, 2, 1, 11), (0.70, 2, 1, 3),
        (1.00, 3, 0, 0), (1.00, 3, 0, 10), (1.00, 4, 0, 0), (1.01, 4, 0, 10),
    ]  # fmt: skip
    log = b"".join(record.pack(round(1e9 * at), number, 0, way, event, 0, 1200, 0) for at, number, way, event in rows)
    path = tmp_path / "packets.bin"
    path.write_bytes(b"BPLINK1\n" + (7_000_000_000).to_bytes(8, "little") + log)
    counted = dict.fromkeys(("packets_in", "bytes_in", "packets_out", "bytes_out", "dropped_queue", "dropped_loss"), 4)
    way = DirectionTruth(**counted, queue_max_packets=0.0, queue_mean_packets=0.0)
    truth = LinkTruth(seed=1, forward=way, return_=way, lateness_p99=0.0, lateness_max=0.0)
    assert link_events(path, truth) is None  # the simulator counted neither
    truth = replace(truth, forward=replace(way, dropped_handover=2))
    events = link_events(path, truth)
    assert events is not None
    assert [times.tolist() for times in events.handover] == [[], [8_000_000_000, 8_010_000_000]]
    assert events.granted[CLIENT].tolist() == [7_700_000_000]
    assert events.waited[CLIENT].tolist() == pytest.approx([0.6])
    path.write_bytes(b"BPLINK1\n" + bytes(9))
    assert link_events(path, truth) is None


def test_handovers_grants_and_fades_are_named() -> None:
    made = Made(CLEAN)
    lost = EPOCH_NS + np.array([900_000_000, 950_000_000, 2_000_000_000])
    events = LinkEvents(
        handover=(lost[:1], lost),
        granted=(EPOCH_NS + np.array([800_000_000]), np.empty(0, dtype=np.int64)),
        waited=(np.array([0.55]), np.empty(0)),
    )
    fall = LinkImpairments(
        changes=(LinkChange(0.0, CLEAN.delay, CLEAN.data_rate), LinkChange(1.0, CLEAN.delay, 2_000_000))
    )
    told = {each.code: each.sentence for each in made.explained(events=events, changes=fall).diagnoses}
    assert told["handover"] == "2 handovers (at 0.9, 2.0 s) lost 3 packets of the server and 1 of the client."
    assert told["waited-for-grant"].endswith("in the median, at most 550 ms.")
    assert told["fade"].startswith("The link's data rate fell from 8 Mbit/s at 1.1 s to 2 Mbit/s, and did not")
    passing = replace(fall, changes=(*fall.changes, LinkChange(1.5, 0.2, 2_000_000)))
    assert not {each.code for each in made.explained(changes=passing).diagnoses} & {"handover", "fade"}


def test_a_server_that_does_not_follow_a_rise_of_the_links_rate_did_not_collapse() -> None:
    rise = LinkImpairments(changes=(LinkChange(1.5, CLEAN.delay, 5 * CLEAN.data_rate),))
    capped = Made(Cause(cap=150_000, size=3_000_000)).explained(changes=rise)
    assert capped.limits[Limit.CONGESTION_WINDOW] > 0.5
    assert "rate-collapse" not in {diagnosis.code for diagnosis in capped.diagnoses}
    collapsed = Made(replace(CLEAN, shrink=(1.0, 1e9, 12_000))).explained(changes=rise)
    assert "rate-collapse" in {diagnosis.code for diagnosis in collapsed.diagnoses}
