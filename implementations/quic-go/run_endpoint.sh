#!/bin/bash
set -eu

# NewReno with an initial window of 32 packets is compiled in: CCA and IW can't change it.
echo "applied: cca=newreno iw=32"

# quic-go marks packets with ECT(0) in every connection, and validates ECN. Upstream's programs don't know the test case `ecn`.
if [[ $TESTCASE == ecn ]]; then export TESTCASE=transfer; fi

if [[ $ROLE == client ]]; then
    # shellcheck disable=SC2086  # both are lists separated by spaces
    exec /usr/local/bin/quic-go/client ${CLIENT_PARAMS:-} $REQUESTS
else
    # shellcheck disable=SC2086
    exec /usr/local/bin/quic-go/server ${SERVER_PARAMS:-}
fi
