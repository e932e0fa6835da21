"""The application protocols of the matrix by ALPN (RFC 7301 §3.1), and the value of TESTCASE for each protocol."""

HTTP09 = "hq-interop"  # HTTP/0.9 over QUIC (contract.md): the response is only the file
HTTP3 = "h3"  # RFC 9114: the response consists of frames
HTTP2 = "h2"  # RFC 9113, over TLS and TCP
HTTP1 = "http/1.1"  # RFC 9112, over TLS and TCP
OVER_QUIC = (HTTP09, HTTP3)
OVER_TCP = (HTTP2, HTTP1)
PROTOCOLS = (*OVER_QUIC, *OVER_TCP)
"""All protocols, preferred first."""
TRANSPORTS = ("tcp", "udp")

WIRE_NAMES = {HTTP3: "http3", HTTP2: "h2", HTTP1: "h1"}
"""Protocol → the value of TESTCASE that requests it, in every case. Over HTTP/0.9, each case has its own value."""


def protocol_of(wire_name: str) -> str:
    """The protocol that an endpoint speaks when TESTCASE is `wire_name`."""
    return next((protocol for protocol, name in WIRE_NAMES.items() if name == wire_name), HTTP09)


def transport_of(protocol: str) -> str:
    """The transport of a protocol: tcp or udp."""
    return "tcp" if protocol in OVER_TCP else "udp"
