"""Writes the TLS messages of a connection as JSON, with the parts that rules need.

The JSON encoder would take twice as long, and a flood of connections has a ClientHello in every packet.
"""

from json.encoder import encode_basestring_ascii

from runner.decode.handshake import (
    Hello,
    Message,
    early_data_size,
    parse_client_hello,
    parse_encrypted_extensions,
    parse_server_hello,
)
from runner.decode.transport_parameters import parse_transport_parameters


def message_text(kind: int, body: bytes, *, sender: int, space: int, packet: int) -> str:
    """A TLS message as a JSON object, sorted by name. `packet`: the row of the packet that completed the message."""
    origin = f'"packet": {packet}, "sender": {sender}, "space": {space}'
    if kind in (Message.CLIENT_HELLO, Message.ENCRYPTED_EXTENSIONS):
        hello = parse_client_hello(body) if kind == Message.CLIENT_HELLO else parse_encrypted_extensions(body)
        if hello is not None:
            return _hello_text(kind, hello, sender=sender, space=space, packet=packet)
    elif kind == Message.SERVER_HELLO and (hello := parse_server_hello(body)) is not None:
        return f'{{{origin}, "suite": {hello.suites[0]}, "type": {kind}}}'
    elif kind == Message.NEW_SESSION_TICKET:
        size = early_data_size(body)
        return f'{{"early_data_size": {"null" if size is None else size}, {origin}, "type": {kind}}}'
    return f'{{{origin}, "type": {kind}}}'


def _hello_text(kind: int, hello: Hello, *, sender: int, space: int, packet: int) -> str:
    data = hello.transport_parameters
    parameters = "null" if data is None else parse_transport_parameters(data).sent
    alpn = ", ".join(map(encode_basestring_ascii, hello.alpn))
    return (
        f'{{"alpn": [{alpn}], "packet": {packet}, "parameters": {parameters}, "sender": {sender}, '
        f'"session_id": {hello.session_id_length}, "space": {space}, "type": {kind}, "versions": {hello.versions}}}'
    )
