#!/bin/bash
set -eu

# OpenSSL's NewReno from 10 packets of 1200 bytes: CCA and IW can't change it.
echo "applied: cca=newreno iw=10"

# --parallel without --parallel-immediate: transfers wait for the first connection and share it. curl writes SSLKEYLOGFILE itself.
# shellcheck disable=SC2086  # both are lists separated by spaces
exec curl --http3-only --parallel --parallel-max 100 --fail --fail-early --silent --show-error --cacert /certs/ca.pem \
    --output-dir /downloads --remote-name-all ${CLIENT_PARAMS:-} $REQUESTS
