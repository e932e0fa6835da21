"""Good recordings of the cases whose link does something, and all bad ones."""

from runner.model.impairments import LinkImpairments
from runner.tests.recordings.bad_handshakes import HANDSHAKES
from runner.tests.recordings.bad_transfers import TRANSFERS
from runner.tests.recordings.bad_versions import VERSIONS
from runner.tests.recordings.links import ACKS_LOST, ADDRESS, MIGRATION, MTU_FALL, OUTAGE, PORT, REORDERED
from runner.tests.recordings.nouns import Good, sizes
from runner.units import KIB

BAD = (*HANDSHAKES, *VERSIONS, *TRANSFERS)

_LONGER = sizes(40 * KIB)  # so that there is a transfer yet when the path is validated

GOOD = (
    Good(server="quinn", client="quic-go", case="blackhole", changes=OUTAGE),
    Good(server="quic-go", client="quinn", case="handshakeloss", changes=sizes(*(1 * KIB,) * 3)),
    Good(server="quinn", client="quic-go", case="handshakecorruption", changes=sizes(*(1 * KIB,) * 3)),
    Good(
        server="quic-go",
        client="quic-go",
        case="transfercorruption",
        changes={"file_sizes": (40 * KIB,), "impaired": LinkImpairments(corruption=0.1)},
    ),
    Good(server="quinn", client="quic-go", case="reordering", changes=REORDERED),
    Good(server="quic-go", client="quinn", case="ackloss", changes=ACKS_LOST),
    Good(server="quinn", client="quic-go", case="postquantum", changes=sizes(*(1 * KIB,) * 3)),
    Good(server="quinn", client="quic-go", case="mtublackhole", changes=MTU_FALL),
    Good(server="quic-go", client="aioquic", case="versionnegotiation"),
    Good(server="quinn", client="quinn", case="amplificationlimit"),
    Good(server="quinn", client="quic-go", case="rebind-port", changes={**PORT, **_LONGER}),
    Good(server="quic-go", client="quinn", case="rebind-addr", changes={**ADDRESS, **_LONGER}),
    Good(server="misbehaving", client="aioquic", case="connectionmigration", changes=MIGRATION),
)
