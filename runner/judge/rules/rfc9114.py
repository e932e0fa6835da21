"""RFC 9114: HTTP/3. The rules are checked on connections that negotiated `h3` and whose stream data can be read: whole
streams, up to 64 MiB of a capture. Fields are checked in sections of up to 64 KiB."""

from runner.judge.rules.nouns import CLIENT, ENDPOINT, SERVER, Document

DOCUMENT = Document(9114)
_every, _unseen = DOCUMENT.every, DOCUMENT.unseen

_every("4.1", "data-before-headers", ENDPOINT, "A message on a request stream or push stream begins with HEADERS.")
_every("4.1", "frame-after-trailers", ENDPOINT, "No HEADERS or DATA follows the trailers of a message.")
_every("4.1", "request-not-finished", CLIENT, "A client ends its request stream after the request.")
_every(
    "4.1.2",
    "content-length-wrong",
    ENDPOINT,
    "The content of a message has the length in its Content-Length field, except for responses without content.",
)
_every("4.2", "upper-case-name", ENDPOINT, "Field names are in lower case.")
_every(
    "4.2",
    "connection-field",
    ENDPOINT,
    "Connection-specific fields (Connection, Keep-Alive, Proxy-Connection, Transfer-Encoding, Upgrade) are not sent.",
)
_every(
    "4.3",
    "pseudo-headers",
    ENDPOINT,
    "Only defined pseudo-header fields are sent, each once, before all other fields and not in trailers. No mandatory "
    "one is missing.",
)
_every("4.4", "connect", CLIENT, "CONNECT has :authority, and neither :scheme nor :path, unless it has :protocol.")
_every(
    "4.6",
    "push-not-allowed",
    SERVER,
    "A server sends PUSH_PROMISE and opens push streams only after the client sent MAX_PUSH_ID.",
)
_every("5.2", "goaway-increases", ENDPOINT, "The identifier of GOAWAY never increases.")
_every("6.1", "server-bidirectional-stream", SERVER, "A server opens no bidirectional stream.")
_every("6.2", "too-few-streams-granted", ENDPOINT, "The peer may open at least three unidirectional streams.")
_every("6.2.1", "no-control-stream", ENDPOINT, "Each endpoint opens a control stream.")
_every("6.2.1", "two-control-streams", ENDPOINT, "No endpoint opens a second control stream.")
_every("6.2.1", "first-frame-not-settings", ENDPOINT, "The first frame of a control stream is SETTINGS.")
_every("6.2.1", "control-stream-closed", ENDPOINT, "The sender doesn't close its control stream.")
_every("6.2.1", "control-stream-stopped", ENDPOINT, "The receiver sends no STOP_SENDING for a control stream.")
_every("6.2.2", "push-stream-from-client", CLIENT, "A client opens no push stream.")
_every("6.2.2", "push-id-reused", SERVER, "A push ID is in one push stream only.")
_every("7.1", "frame-cut-off", ENDPOINT, "A stream that ends with FIN ends at the end of a frame.")
_every(
    "7.1",
    "frame-length-wrong",
    ENDPOINT,
    "A frame ends with its last field. Checked for SETTINGS, CANCEL_PUSH, GOAWAY and MAX_PUSH_ID on control streams.",
)
_every("7.2.1", "data-on-control", ENDPOINT, "DATA is not sent on a control stream.")
_every("7.2.2", "headers-on-control", ENDPOINT, "HEADERS is not sent on a control stream.")
_every(
    "7.2.3",
    "cancel-push-above-limit",
    ENDPOINT,
    "The push ID of CANCEL_PUSH is at most the client's MAX_PUSH_ID.",
)
_every("7.2.3", "cancel-push-on-request", ENDPOINT, "CANCEL_PUSH is sent only on the control stream.")
_every("7.2.4", "settings-on-request", ENDPOINT, "SETTINGS is sent only on the control stream.")
_every("7.2.4", "settings-twice", ENDPOINT, "SETTINGS is sent once.")
_every("7.2.4", "setting-twice", ENDPOINT, "No setting occurs twice.")
_every("7.2.4.1", "http2-setting", ENDPOINT, "Settings that are defined only in HTTP/2 are not sent.")
_every("7.2.5", "push-promise-from-client", CLIENT, "A client sends no PUSH_PROMISE.")
_every("7.2.5", "push-promise-on-control", SERVER, "PUSH_PROMISE is not sent on a control stream or push stream.")
_every(
    "7.2.5",
    "push-id-above-limit",
    SERVER,
    "The push IDs of PUSH_PROMISE and of push streams are at most the client's MAX_PUSH_ID.",
)
_every("7.2.6", "goaway-on-request", ENDPOINT, "GOAWAY is sent only on the control stream.")
_every("7.2.6", "goaway-id-wrong", SERVER, "GOAWAY of a server names a client's bidirectional stream.")
_every("7.2.7", "max-push-id-from-server", SERVER, "A server sends no MAX_PUSH_ID.")
_every("7.2.7", "max-push-id-on-request", CLIENT, "MAX_PUSH_ID is sent only on the control stream.")
_every("7.2.7", "max-push-id-decreases", CLIENT, "MAX_PUSH_ID never decreases.")
_every("7.2.8", "http2-frame", ENDPOINT, "Frame types that are defined only in HTTP/2 are not sent.")
_unseen(
    "8",
    "wrong-error-code",
    ENDPOINT,
    "Errors have the codes of §8.1.",
    "only a peer that makes each error could show this",
)
_unseen(
    "9",
    "unknown-frame-refused",
    ENDPOINT,
    "Unknown frames and streams are ignored.",
    "packets don't show what an endpoint ignored",
)
