#!/bin/sh
# Changes the quic-go in DIRECTORY (a vendored v0.65.0): its client logs CLIENT_EARLY_TRAFFIC_SECRET, which Go's TLS doesn't log.
# Usage: log.sh DIRECTORY. Another version of quic-go stops the build.
set -eu

cp "$(dirname "$0")/early_secret.go" "$1/internal/handshake/"
cd "$1/internal/handshake"
sed -i '/^func (h \*cryptoSetup) handleEvent(/a h.logEarlySecret(ev)' crypto_setup.go
grep -q '^h.logEarlySecret(ev)$' crypto_setup.go
