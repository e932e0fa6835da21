"""Decodes captures of TCP connections with TLS 1.3 to the tables of `runner.decode.columns`, which QUIC uses, too.

A segment becomes a packet. Its packet number counts the segments of the sender in the order of sending. Segments of the
TCP handshake and unprotected TLS records have the type `initial`, protected records of the TLS handshake have the type
`handshake`, and later records `1rtt`. Segments of the server after the response have the type `unknown`. Stream 0 of
the server is the response: the TLS records from its first header to its last byte of content. Cumulative and selective
acknowledgements become ACK frames with the packets that they acknowledge for the first time. The receive window becomes
`max_data`.
"""

from runner.decode.tcp.tcp import cached_decode_tcp, decode_tcp

__all__ = ["cached_decode_tcp", "decode_tcp"]
