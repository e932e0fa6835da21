"""RFC 9368: compatible version negotiation."""

from runner.judge.rules.nouns import CLIENT, ENDPOINT, SERVER, Document

DOCUMENT = Document(9368)
_every, _case, _unchecked, _unseen = DOCUMENT.every, DOCUMENT.case, DOCUMENT.unchecked, DOCUMENT.unseen

_every("2.3", "version-not-offered", SERVER, "A server changes only to a version of the client's Available Versions.")
_case("2.3", "not-negotiated", SERVER, "A server that prefers version 2 changes to it.", "v2")
_every("3", "malformed", ENDPOINT, "version_information contains at least one version, and only complete versions.")
_every("3", "version-zero", ENDPOINT, "No version of version_information is 0.")
_every("3", "chosen-not-available", CLIENT, "The client's Chosen Version is one of its Available Versions.")
_every("4", "client-chosen-wrong", CLIENT, "The client's Chosen Version is the version of its first packets.")
_every("4", "server-chosen-wrong", SERVER, "The server's Chosen Version is the version that was negotiated.")
_unchecked(
    "4",
    "downgrade-unnoticed",
    CLIENT,
    "A client that followed Version Negotiation checks that the server would have chosen the same version.",
    "no server of the matrix does this",
)
_unseen(
    "6",
    "compatible-wrongly",
    SERVER,
    "A server converts a first flight only to a compatible version.",
    "only versions 1 and 2 are known",
)
