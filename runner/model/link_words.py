"""The observations of a real link during a job, in sentences."""

from collections.abc import Iterator

from runner.model.real_link import Clock, Probing, RealLinkEvidence
from runner.units import format_data_rate, format_size


def real_link_sentences(link: RealLinkEvidence) -> Iterator[str]:
    """Lines about route, clocks, probes and comment. Each line begins with its topic, padded to 9 characters."""
    nat = {True: ", behind a NAT", False: ", no NAT", None: ""}[link.translated]
    where = f"{link.server_address} UDP port {link.udp_port} over {link.interface}{nat}"
    yield f"way      {where}, {format_size(link.volume)} charged"
    if link.clock is not None:
        yield f"clock    {_clock(link.clock)}"
    for name, phase in (("before", link.before), ("during", link.during), ("after", link.after)):
        if phase is not None:
            yield f"{name:<9}{_probing(phase)}"
    yield f"probes   {format_data_rate(link.probe_data_rate)} each way during the transfer; no number includes them"
    if link.comment:
        yield f"comment  {link.comment}"


def _clock(clock: Clock) -> str:
    ahead = f"the client's is {clock.offset * 1e3:+.2f} ms ahead"
    drift = f", drift {clock.drift * 1e6:+.1f} ppm" if clock.drift else ""
    sure = f"± {clock.uncertainty * 1e3:.2f} ms if both ways have equal delays, ± {clock.bound * 1e3:.0f} ms at most"
    return f"{ahead}{drift}, {sure}; {clock.exchanges} exchanges"


def _probing(phase: Probing) -> str:
    lost = f"{phase.sent - phase.received} of {phase.sent} probes lost"
    if phase.rtt_min is None or phase.rtt_median is None or phase.rtt_max is None:
        return lost
    rtts = ", ".join(f"{1e3 * rtt:.1f}" for rtt in (phase.rtt_min, phase.rtt_median, phase.rtt_max))
    return f"RTT {rtts} ms (min, median, max), {lost}"
