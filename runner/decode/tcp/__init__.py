"""Captures of TCP connections with TLS 1.3 → the tables of `runner.decode.schema`, the same as for QUIC.

A segment is a packet; its number counts the segments of its sender in the order of sending. The handshakes of TCP and
TLS have the types `initial` and `handshake`, the rest `1rtt`. Stream 0 of the server is the response: the TLS
records from its first header to its last byte of content. Cumulative and selective acknowledgements are ACK frames with
the packets that they acknowledge for the first time. The receive window is `max_data`.
"""

from runner.decode.tcp.decode import cached_decode_tcp, decode_tcp

__all__ = ["cached_decode_tcp", "decode_tcp"]
