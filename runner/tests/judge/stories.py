"""A real recording that becomes a failed job: an endpoint breaks a rule, falls silent, closes, or loses its state."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from lab.mutate.mutants import MUTANTS
from lab.mutate.mutation import Mutation, Sent, copied
from lab.mutate.recording import CLIENT, SERVER, Datagram, Recording
from lab.mutate.wire import F, Kind, P, Packet, frame
from runner.judge.judges import analyse
from runner.model.result import Artifacts, Result
from runner.model.run import Job
from runner.plan.catalog import Catalog
from runner.tests.recordings.conformance import changed
from runner.tests.records import RECORDINGS

TRANSFER = "quinn_quic-go/credit"  # 240 KiB in three files
SIZES = (81920, 81920, 122880)  # bytes of its files
HANDSHAKE = "quinn_quinn/handshake"
NOBODY = ""
JOB = Job(server="s", client="c", case="x", iteration=1)
TIMEOUT = 60  # seconds
TOKEN = b"a client's token"  # the stateless reset token of a client, which sends none


@dataclass
class Story:
    """A recording that is changed into a failed job."""

    recording: Recording
    random: Random = field(default_factory=lambda: Random(5))

    @classmethod
    def of(cls, path: str) -> "Story":
        return cls(Recording.load(RECORDINGS / path / "1"))

    def mutation(self, role: str) -> Mutation:
        return Mutation(self.recording, self.recording.connections[-1], role, self.random)

    def middle(self, role: str, kind: Kind = Kind.ONE_RTT) -> Sent:
        """A packet of the role that arrived, at about half of its packets of this kind."""
        sent = [each for each in self.mutation(role).packets(kind) if each[0].arrived]
        return sent[len(sent) // 2]

    def breaks(self, rule: str, role: str) -> Datagram | None:
        """The role breaks a rule by a mutant. Returns the last datagram that changed."""
        known = {id(datagram) for datagram in self.recording.datagrams}
        chosen = [each for each in MUTANTS if each.rule == rule and each.role == role]
        chosen[0].apply(self.mutation(role))
        return next(
            (
                datagram
                for datagram in reversed(self.recording.datagrams)
                if datagram.sender == role
                and (id(datagram) not in known or any(packet.changed for packet in datagram.packets))
            ),
            None,
        )

    def stop(self, role: str, after_ns: int) -> None:
        """The role sends nothing after this time."""
        for datagram in list(self.recording.datagrams):
            if datagram.sender == role and datagram.sent_ns > after_ns:
                self.recording.remove(datagram)

    def closes(
        self, role: str, after_ns: int, code: int, *, application: bool = False, kind: Kind = Kind.ONE_RTT
    ) -> None:
        """The role closes the connection at its first packet after this time; then both are silent."""
        later = [each for each in self.mutation(role).packets(kind) if each[0].sent_ns > after_ns]
        datagram, packet = later[0] if later else self.mutation(role).packets(kind)[-1]
        close = frame(F.CLOSE_APPLICATION, code=code) if application else frame(F.CLOSE, code=code, frame=0)
        packet.frames = [close]
        packet.changed = True
        datagram.packets = [packet]
        if kind is Kind.INITIAL:
            packet.pad(1200 - datagram.size)
        self.stop(role, datagram.sent_ns)
        peer = SERVER if role == CLIENT else CLIENT
        self.stop(peer, datagram.seen[peer].time_ns if peer in datagram.seen else datagram.sent_ns)

    def loses_state(self, role: str) -> None:
        """The role answers the last packet of its peer by a stateless reset."""
        last = [each for each in self.recording.datagrams if each.sender != role][-1]
        like = next(each for each in self.recording.datagrams if each.sender == role and each.arrived)
        token = TOKEN if role == CLIENT else self.mutation(role).parameters(SERVER)[P.RESET_TOKEN]
        packet = Packet(Kind.OPAQUE, b"\x4a" + self.random.randbytes(24) + token)
        self.recording.insert(like, [packet], after_s=(last.sent_ns - like.sent_ns) / 1e9 + 0.03)

    def waits(self, seconds: float, role: str = CLIENT) -> None:
        """The role sends a PING after so many seconds."""
        datagram, packet = self.mutation(role).packets(Kind.ONE_RTT)[-1]
        self.recording.insert(datagram, [copied(packet, frame(F.PING), number=packet.number + 1)], after_s=seconds)

    def ends(self, *, exit_code: int | None = 1, timed_out: bool = False, missing: bool = True) -> None:
        """The client's end, and whether its files are missing."""
        evidence = self.recording.evidence
        evidence["client"].update(exit_code=exit_code, timed_out=timed_out)
        if timed_out:
            evidence["client"]["ended"] = evidence["client"]["started"] + TIMEOUT
        if missing:
            for file in evidence["files"]:
                file.update(received=None, equal=False)

    def judge(self, catalog: Catalog, folder: Path, case: str, sizes: tuple[int, ...] = ()) -> Result:
        """The verdict. The link's truth counts the packets that are left."""
        self.recording.sort()
        self.recording.save(folder)
        truth = json.loads((folder / "sim/truth.json").read_text())
        for sender, way in ((CLIENT, "return"), (SERVER, "forward")):
            mine = [datagram for datagram in self.recording.datagrams if datagram.sender == sender]
            truth[way]["packets_in"] = len(mine)
            truth[way]["packets_out"] = sum(datagram.arrived for datagram in mine)
        (folder / "sim/truth.json").write_text(json.dumps(truth))
        record = catalog.cases[case].record()
        if sizes:
            record = changed(record, {"file_sizes": sizes})
        return analyse(JOB, Artifacts(folder), catalog.cases[case], record)


Tell = Callable[[Story], None]
Stories = dict[str, tuple[str, str, tuple[int, ...], str, Tell]]
"""Name → recording, case, sizes, role at fault, change."""


def story_of(
    stories: Stories, name: str, path: str, case: str, sizes: tuple[int, ...], culprit: str
) -> Callable[[Tell], Tell]:
    """Add the decorated change to these stories."""

    def register(tell: Tell) -> Tell:
        stories[name] = path, case, sizes, culprit, tell
        return tell

    return register
