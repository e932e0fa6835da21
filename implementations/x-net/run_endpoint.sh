#!/bin/bash
set -eu

# NewReno with an initial window of 10 packets is compiled in: CCA and IW can't change it.
echo "applied: cca=newreno iw=10"

program=(/usr/local/bin/x-net "-qlog=${QLOGDIR:-}")

case $TESTCASE in
    # For `transfer`, upstream's program reduces its receive windows to 64 KiB, which makes every satellite link slow. For
    # `handshake` it does the same work with the library's default windows. It doesn't know `multiconnect`. For `chacha20`,
    # it refuses clients whose list of suites also has TLS_EMPTY_RENEGOTIATION_INFO_SCSV (OpenSSL's), which is no suite.
    transfer | multiconnect | chacha20) several=$TESTCASE; export TESTCASE=handshake ;;
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

# For `multiconnect`: each run of the program opens one connection.
for url in $REQUESTS; do
    # shellcheck disable=SC2086
    "${program[@]}" ${CLIENT_PARAMS:-} "$url"
done
