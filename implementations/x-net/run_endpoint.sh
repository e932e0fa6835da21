#!/bin/bash
set -eu

# NewReno from 10 packets is compiled in: CCA and IW can't change it.
echo "applied: cca=newreno iw=10"

program=(/usr/local/bin/x-net "-qlog=${QLOGDIR:-}")

case $TESTCASE in
    # Upstream's program would shrink its receive windows to 64 KiB for `transfer`, which no satellite link forgives. As
    # `handshake` it does the same with the library's own windows. It knows no `multiconnect`.
    transfer | multiconnect) several=$TESTCASE; export TESTCASE=handshake ;;
esac

if [[ $ROLE == server ]]; then
    # shellcheck disable=SC2086  # all of these are lists separated by spaces
    exec "${program[@]}" -listen=:443 -cert=/certs/cert.pem -key=/certs/priv.key -root=/www ${SERVER_PARAMS:-}
fi

program+=(-output=/downloads)
if [[ ${several:-} != multiconnect ]]; then
    # shellcheck disable=SC2086
    exec "${program[@]}" ${CLIENT_PARAMS:-} $REQUESTS
fi

# One run of the program is one connection.
for url in $REQUESTS; do
    # shellcheck disable=SC2086
    "${program[@]}" ${CLIENT_PARAMS:-} "$url"
done
