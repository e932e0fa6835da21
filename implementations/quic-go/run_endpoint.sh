#!/bin/bash
set -eu

# NewReno from 32 packets is compiled in: CCA and IW can't change it.
echo "applied: cca=newreno iw=32"

# quic-go marks ECT(0) and validates it in every connection; upstream's programs have no name for the test case.
if [[ $TESTCASE == ecn ]]; then export TESTCASE=transfer; fi

if [[ $ROLE == client ]]; then
    # shellcheck disable=SC2086  # both are lists separated by spaces
    exec /usr/local/bin/quic-go/client ${CLIENT_PARAMS:-} $REQUESTS
else
    # shellcheck disable=SC2086
    exec /usr/local/bin/quic-go/server ${SERVER_PARAMS:-}
fi
