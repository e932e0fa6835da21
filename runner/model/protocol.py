"""The application protocols of the matrix by their ALPN (RFC 7301 §3.1), and what asks an endpoint for each."""

HTTP09 = "hq-interop"  # HTTP/0.9 over QUIC, contract.md: the response is the bare file
HTTP3 = "h3"  # RFC 9114: the response is framed
PROTOCOLS = (HTTP09, HTTP3)

HTTP3_WIRE_NAME = "http3"  # the one value of TESTCASE that asks for HTTP/3


def protocol_of(wire_name: str) -> str:
    """The protocol that an endpoint speaks when TESTCASE is `wire_name`."""
    return HTTP3 if wire_name == HTTP3_WIRE_NAME else HTTP09
