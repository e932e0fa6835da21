#!/bin/bash
set -eu
# shellcheck source=/dev/null
. /tcp-setup.sh

# With --parallel and without --parallel-immediate, all transfers wait for the first connection and share it. Over HTTP/1.1
# a connection can't be shared, so the transfers run one after the other. curl writes SSLKEYLOGFILE itself.
case $TESTCASE in
    h1) protocol=(--http1.1) ;;
    h2) protocol=(--http2 --parallel --parallel-max 100 --fail-early) ;;
    *) protocol=(--http3-only --parallel --parallel-max 100 --fail-early) ;;
esac
case $TESTCASE in
    h1 | h2) tcp_setup ;;
    # OpenSSL's NewReno from 10 packets of 1200 bytes: CCA and IW can't change it.
    *) echo "applied: cca=newreno iw=10" ;;
esac

if [[ $TESTCASE == upload ]]; then
    files=()
    for url in $REQUESTS; do files+=(--upload-file "/www/${url##*/}" "$url"); done
    # shellcheck disable=SC2086  # a list separated by spaces
    exec curl "${protocol[@]}" --fail --silent --show-error --cacert /certs/ca.pem ${CLIENT_PARAMS:-} "${files[@]}"
fi
# shellcheck disable=SC2086  # both are lists separated by spaces
exec curl "${protocol[@]}" --fail --silent --show-error --cacert /certs/ca.pem \
    --output-dir /downloads --remote-name-all ${CLIENT_PARAMS:-} $REQUESTS
