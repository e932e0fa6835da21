"""Samples of a job whose server was not seen."""

from runner.model.result import Sample


def test_without_the_server_only_numbers_of_the_client_stay() -> None:
    whole = Sample(file_size=1000, ttfb=1.0, ttlb=2.0, rtt_min=1.6e-6, slow_start_bound=0.4, lost_packets=0)
    alone = whole.from_client_alone
    assert (alone.ttfb, alone.ttlb) == (1.0, 2.0)
    assert (alone.rtt_min, alone.slow_start_bound, alone.lost_packets) == (None, None, None)
