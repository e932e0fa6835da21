"""The labelled set: transfers whose cause is set on purpose, and the diagnoses that each cause must lead to.

A label comes from the settings, never from a detector. `expected` follows from the settings by arithmetic: a congestion
window that is 0.3 BDP from the first packet on never fills the path; a window of 2.6 BDP makes packets wait for 1.6
RTTs in a queue of 3 BDP. `allowed` diagnoses may occur by chance or because of a stack's own choice. Every other
diagnosis is wrong.

The set has two parts, with different links, values and seeds. Detectors may be developed with `look`; reported numbers
come from `held`. Grounds c to f once belonged to `held`, until their results led to a fix.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from runner.model.link import Direction, Link, LinkImpairments, MtuFall, Outage, PathImpairments, Queue
from runner.model.stack import Variant

MISBEHAVING = "misbehaving"
LOOK, HELD, RECORDED = "look", "held", "recorded"
CELL = "bimodal"
"""The diagnosis that is made from all iterations of a matrix cell together."""

_FORWARD_DATAGRAM = 1165  # bytes of a file in one of misbehaving's datagrams
_SHORT = 0.3  # s of RTT; up to this RTT ten iterations take at most a minute
_SMALLEST = frozenset({"mtu-not-raised"})
_LOSSES = frozenset({"queue-overflow", "window-after-loss", "standing-queue"})
"""Diagnoses that a loss-based controller may cause by itself when it probes for more data rate."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A link on which causes are set, and the factor by which it varies their values."""

    name: str
    part: str
    data_rate: int
    rtt: float
    size: int
    """Bytes of the file: 8 to 20 BDP."""
    packets: int
    """Datagrams of the server up to its last new byte, counted in a clean transfer. A lost tail begins near the last
    of them."""
    vary: float
    """A factor of the causes' settings, so that the two parts don't share values."""

    @property
    def bdp(self) -> int:
        return round(self.data_rate * self.rtt / 8)

    def part_of(self, share: float) -> int:
        """The bytes of a share of the BDP, times `vary`."""
        return round(share * self.vary * self.bdp)

    # aioquic acknowledges nearly every packet (its ack_delay is 1 ms). These ACKs take 5 % of 6 Mbit/s.
    def link(self, name: str, *, queue: float = 2.0, loss: float = 0.0, back: int = 6_000_000) -> Link:
        """The link with a queue in BDP and a return link of `back` bit/s."""
        forward = Direction(data_rate=self.data_rate, delay=self.rtt / 2, queue=Queue(bdp=queue), loss=loss)
        return_ = Direction(data_rate=back, delay=self.rtt / 2, queue=Queue(packets=200))
        return Link.single(name, forward=forward, return_=return_, source="labelled set")


GROUNDS = (
    Ground(name="a", part=LOOK, data_rate=4_000_000, rtt=0.1, size=1_000_000, packets=866, vary=1.0),
    Ground(name="b", part=LOOK, data_rate=4_000_000, rtt=0.6, size=2_500_000, packets=2162, vary=1.0),
    Ground(name="c", part=LOOK, data_rate=3_000_000, rtt=0.2, size=1_000_000, packets=868, vary=0.85),
    Ground(name="d", part=LOOK, data_rate=5_000_000, rtt=0.4, size=2_500_000, packets=2161, vary=1.1),
    Ground(name="e", part=LOOK, data_rate=6_000_000, rtt=0.25, size=2_500_000, packets=2156, vary=0.95),
    Ground(name="f", part=LOOK, data_rate=2_500_000, rtt=0.35, size=1_500_000, packets=1304, vary=1.05),
    Ground(name="g", part=HELD, data_rate=3_500_000, rtt=0.15, size=1_200_000, packets=1049, vary=0.9),
    Ground(name="h", part=HELD, data_rate=4_500_000, rtt=0.5, size=2_500_000, packets=2163, vary=1.15),
)
# Small enough for recordings that stay in the repository (runner/tests/recordings/causes).
RECORDING = Ground(name="r", part=RECORDED, data_rate=2_000_000, rtt=0.2, size=820_000, packets=727, vary=1.0)


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """One transfer. `server` and `client` are stacks, or the parameters of misbehaving."""

    name: str
    part: str
    link: Link
    size: int
    server: str
    client: str = ""
    wire: str = "transfer"
    expected: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    iterations: int = 1

    @property
    def server_variant(self) -> Variant:
        return _variant(self.server, "SERVER_PARAMS")

    @property
    def client_variant(self) -> Variant:
        return _variant(self.client, "CLIENT_PARAMS")


def _variant(text: str, variable: str) -> Variant:
    if "=" in text:
        return Variant.of(MISBEHAVING, {variable: text})
    return Variant.of(text or MISBEHAVING, {})


@dataclass(frozen=True, kw_only=True)
class _Cause:
    """The parts of `Labelled` that don't depend on its ground. `window`: the size of the constant window of the
    controller `steady`, in BDP; 0: aioquic's own controller. `queue`: in BDP. `back`: the return link in bit/s."""

    server: str = ""
    client: str = ""
    window: float = 1.1
    queue: float = 2.0
    loss: float = 0.0
    back: int = 6_000_000
    share: float = 1.0
    """Share of the ground's file that is transferred."""
    forward: LinkImpairments | None = None
    path: PathImpairments | None = None
    wire: str = "transfer"
    expected: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    grown: bool = False
    """True when the server's datagrams grow above 1200 B."""
    iterations: int = 1


def _alone(ground: Ground) -> Mapping[str, _Cause]:
    """Transfers between two endpoints of misbehaving, each with one cause."""
    bdp, rtt, vary = ground.bdp, ground.rtt, ground.vary
    duration = 8 * ground.size / ground.data_rate
    return {
        "clean": _Cause(),
        "clean-large-window": _Cause(client=f"sin=tiny-window window={round(2.6 * bdp)}"),
        "window-third": _Cause(
            client=f"sin=tiny-window window={ground.part_of(0.3)}", expected=("receive-window",), share=0.5
        ),
        "window-half": _Cause(
            client=f"sin=tiny-window window={ground.part_of(0.55)}", expected=("receive-window",), share=0.7
        ),
        "never-grows": _Cause(window=0.3 * vary, expected=("window-never-grew",), share=0.5),
        "leaves-slow-start": _Cause(
            server=f"sin=leaves-slow-start window={max(ground.part_of(0.35), 24_000)}",
            window=0,
            expected=("slow-start-left-early",),
            share=0.5,
        ),
        "stalls": _Cause(
            server=f"sin=stalls at={0.4 * duration:.2f} time={max(0.6, 1.5 * rtt) * vary:.2f}",
            expected=("application-idle",),
        ),
        "answers-late": _Cause(server=f"sin=answers-late time={1.2 * vary:.2f}", expected=("application-idle",)),
        "collapses": _Cause(
            server=f"sin=collapses at={0.4 * duration:.2f} window={max(ground.part_of(0.08), 2_400)}",
            expected=("rate-collapse",),
            share=0.6,
        ),
        # Thesis, figure 5.11: in the middle the rate falls to a third, so that a transfer of 20 s takes 40 s.
        "bends": _Cause(
            server=f"sin=collapses at={0.5 * duration:.2f} window={ground.part_of(0.33)}",
            expected=("rate-collapse",),
        ),
        "bursts": _Cause(
            server=f"sin=bursts every={rtt:g} window={ground.part_of(0.75)} rate={4 * ground.data_rate}",
            window=0,
            expected=("bursts",),
            allowed=("slow-start-left-early", "window-never-grew"),  # true when the window is no larger than a burst
            share=0.6,
        ),
        "datagrams-twice": _Cause(server="sin=sends-twice", window=0.55, expected=("sent-twice",), share=0.6),
        "data-twice": _Cause(
            server=f"sin=retransmits-early every=1 after={0.6 * rtt * vary:.3f}", expected=("sent-twice",), share=0.6
        ),
        "early-repeats": _Cause(
            server=f"sin=retransmits-early every={round(6 * vary)} after={0.3 * rtt:.3f}",
            expected=("spurious-retransmissions",),
        ),
        "out-of-order": _Cause(server=f"sin=out-of-order every={round(20 * vary)} by=8", expected=("out-of-order",)),
        "numbers-go-back": _Cause(
            server=f"sin=numbers-go-back every={round(20 * vary)}", expected=("packet-numbers",), share=0.6
        ),
        "numbers-reused": _Cause(
            server=f"sin=reuses-packet-numbers every={round(20 * vary)}", expected=("packet-numbers",), share=0.6
        ),
        "small-datagrams": _Cause(
            server=f"sin=small-datagrams size={round(700 * vary)}",
            expected=("small-datagrams",),
            allowed=("mtu-not-raised",),
            share=0.6,
            grown=True,
        ),
        "raises-mtu": _Cause(server=f"sin=raises-mtu size={round(1440 / max(vary, 1))}", grown=True),
    }


def _of_the_path(ground: Ground) -> Mapping[str, _Cause]:
    """Transfers between two endpoints of misbehaving, with causes on the link or with effects on the link."""
    rtt, vary = ground.rtt, ground.vary
    duration = 8 * ground.size / ground.data_rate
    return {
        "acks-everything": _Cause(client="sin=acks-everything size=400", expected=("dense-acks",)),
        "return-full": _Cause(
            client="sin=acks-everything size=400",
            back=round(0.22 * ground.data_rate),
            expected=("dense-acks", "return-link-full"),
            share=0.6,
        ),
        # ACKs with many ranges are long. The return link is so wide that they take less than a tenth of it.
        "overflows": _Cause(
            window=1.9, queue=0.5 * vary, back=10_000_000, expected=("queue-overflow",), allowed=("retransmitted-tail",)
        ),
        "stands": _Cause(window=2.6 * max(1.0, vary), queue=3.5, expected=("standing-queue",)),
        "losses": _Cause(
            window=0,
            loss=0.02 * vary,
            expected=("window-after-loss",),
            allowed=("retransmitted-tail", "small-datagrams"),  # aioquic fills a small window with small datagrams
            share=0.6 if rtt < _SHORT else 0.15,
        ),
        "losses-borne": _Cause(loss=0.01 * vary, allowed=("retransmitted-tail",)),
        "tail-lost": _Cause(
            forward=LinkImpairments(loss_list=((ground.packets - 12, ground.packets + 3),)),
            expected=("retransmitted-tail",),
        ),
        "outage": _Cause(
            path=PathImpairments(outage=Outage(start=0.4 * duration, duration=max(0.8, 1.5 * rtt) * vary)),
            expected=("outage",),
            allowed=("spurious-retransmissions",),  # the outage drops the ACKs of packets that arrived
        ),
        "black-hole": _Cause(
            server="sin=raises-mtu size=1400",
            path=PathImpairments(mtu_fall=MtuFall(size=1300, start=0.4 * duration)),
            expected=("mtu-black-hole",),
            grown=True,
        ),
        "ecn-not-reported": _Cause(
            client="sin=no-ecn-counts",
            wire="ecn",
            forward=LinkImpairments(mark_packets=3),
            window=1.4,
            expected=("ecn-not-reported",),
        ),
        "ecn-as-ect": _Cause(
            client="sin=no-ce-counts",
            wire="ecn",
            forward=LinkImpairments(mark_packets=3),
            window=1.4,
            expected=("ecn-not-reported",),
        ),
        "ecn-ignored": _Cause(
            wire="ecn", forward=LinkImpairments(mark_packets=3), window=1.4, expected=("ecn-ignored",)
        ),
        "ecn-heeded": _Cause(
            wire="ecn", forward=LinkImpairments(mark_packets=5), window=0, allowed=("slow-start-left-early",)
        ),
        "stalls-and-acks": _Cause(
            server=f"sin=stalls at={0.5 * duration:.2f} time={max(0.7, 1.5 * rtt):.2f}",
            client="sin=acks-everything size=400",
            expected=("application-idle", "dense-acks"),
        ),
        "repeats-and-window": _Cause(
            server="sin=retransmits-early every=7 after=0.02",
            client=f"sin=tiny-window window={round(0.4 * ground.bdp)}",
            expected=("spurious-retransmissions", "receive-window"),
            share=0.6,
        ),
    }


def _of_cells(ground: Ground) -> Mapping[str, _Cause]:
    """Causes that show only when several iterations are compared."""
    return {
        "sometimes-slow": _Cause(
            server=f"sin=sometimes-slow window={round(0.25 * ground.vary * ground.bdp)}",
            allowed=("window-never-grew",),
            expected=(CELL,),
            share=0.3,
            iterations=10,
        ),
        "always-alike": _Cause(share=0.3, iterations=10),
    }


def _of_stacks(ground: Ground) -> Iterator[Labelled]:
    """Transfers of real stacks, without a cause or with a cause that the link or the client sets."""

    def transfer(name: str, server: str, client: str, *diagnoses: str, **settings: object) -> Labelled:
        loss, share = float(str(settings.get("loss", 0.0))), float(str(settings.get("share", 1.0)))
        name = f"{name}-{ground.name}"
        return Labelled(
            name=name,
            part=ground.part,
            link=ground.link(name, loss=loss),
            size=round(share * ground.size),
            server=server,
            client=client,
            expected=frozenset(diagnoses),
            allowed=_LOSSES | ({"mtu-not-raised"} if server == "aioquic" else frozenset()),
        )

    for server in ("quic-go", "quinn", "ngtcp2"):
        yield transfer(f"clean-{server}", server, "quic-go" if server != "quic-go" else "quinn")
    yield transfer("clean-aioquic", "aioquic", "quic-go")
    window = f"sin=tiny-window window={round(0.4 * ground.vary * ground.bdp)}"
    yield transfer("window-quic-go", "quic-go", window, "receive-window", share=0.5)
    yield transfer("acks-quinn", "quinn", "sin=acks-everything size=400", "dense-acks")
    yield transfer("losses-quic-go", "quic-go", "quinn", "window-after-loss", loss=0.02, share=0.4)


def labelled() -> tuple[Labelled, ...]:
    """The whole set, in the order in which it is made."""
    return tuple(transfer for ground in GROUNDS for transfer in (*_of_misbehaving(ground), *_of_stacks(ground)))


def recorded() -> tuple[Labelled, ...]:
    """The transfers whose recordings are kept: one for each cause, and clean transfers."""
    causes = {**_alone(RECORDING), **_of_the_path(RECORDING)}
    return tuple(_placed(name, RECORDING, cause) for name, cause in causes.items())


def _of_misbehaving(ground: Ground) -> Iterator[Labelled]:
    cells = _of_cells(ground) if ground.rtt < _SHORT else {}
    for name, cause in {**_alone(ground), **_of_the_path(ground), **cells}.items():
        yield _placed(f"{name}-{ground.name}", ground, cause)


def _placed(name: str, ground: Ground, cause: _Cause) -> Labelled:
    link = ground.link(name, queue=cause.queue, loss=cause.loss, back=cause.back)
    if cause.forward is not None:
        forward = replace(link.satellite.forward, impairments=cause.forward)
        link = replace(link, segments=(replace(link.satellite, forward=forward),))
    if cause.path is not None:
        link = replace(link, segments=(replace(link.satellite, impairments=cause.path),))
    size = round(cause.share * ground.size)
    steady = f"steady={round(cause.window * ground.bdp)}" if cause.window else ""
    expected = frozenset(cause.expected)
    # aioquic never raises its datagrams above 1200 B. From 500 datagrams on, this is a diagnosis.
    small = frozenset() if cause.grown else _SMALLEST
    certain = size > 700 * _FORWARD_DATAGRAM
    return Labelled(
        name=name,
        part=ground.part,
        link=link,
        size=size,
        server=" ".join(word for word in (cause.server, steady) if word),
        client=cause.client,
        wire=cause.wire,
        expected=expected | (small if certain else frozenset()),
        allowed=frozenset(cause.allowed) | (frozenset() if certain else small),
        iterations=cause.iterations,
    )
