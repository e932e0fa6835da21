"""The links. Delay is one-way; `forward` carries the download. One declaration each; parameters and sources: README."""

from runner.model.scenario import Link, Queue, Scenario

_25_PACKETS = Queue(packets=25)
# The thesis set 25 packets and ran with about 125, which is 12 % of the BDP: the compatible value is what ran.
_125_PACKETS = Queue(packets=125)


def _symmetric(name: str, *, data_rate: int, delay: float, source: str, loss: float = 0.0) -> Scenario:
    link = Link(data_rate=data_rate, delay=delay, queue=_25_PACKETS, loss=loss)
    return Scenario(name=name, forward=link, return_=link, source=source)


def _geo(name: str, *, loss: float, source: str) -> Scenario:
    return Scenario(
        name=name,
        forward=Link(data_rate=20_000_000, delay=0.300, queue=_125_PACKETS, loss=loss),
        return_=Link(data_rate=2_000_000, delay=0.300, queue=_125_PACKETS, loss=loss),
        source=source,
    )


DEFAULT = _symmetric("D", data_rate=10_000_000, delay=0.015, source="public runner's default link")
LOSS_2 = _symmetric("D-loss-2", data_rate=10_000_000, delay=0.015, loss=0.02, source="public runner, transferloss")
TERRESTRIAL = _symmetric("terrestrial", data_rate=20_000_000, delay=0.015, source="follow-up paper of the thesis")
LONGRTT = _symmetric("longrtt", data_rate=10_000_000, delay=0.750, source="public runner, longrtt")
SAT = _geo("SAT", loss=0.0, source="thesis, table 4.3")
SATLOSS = _geo("SATLOSS", loss=0.01, source="thesis, table 4.3")
