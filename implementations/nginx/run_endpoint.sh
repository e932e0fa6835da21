#!/bin/bash
set -eu

# Compiled in: NewReno from 131 054 bytes (twice the largest UDP payload that nginx accepts), 109 packets of 1200.
echo "applied: cca=newreno iw=109"

{
    if [[ $TESTCASE == retry ]]; then echo "quic_retry on;"; fi
    echo "${SERVER_PARAMS:-}"
} > /run/nginx-server.conf

LD_PRELOAD=/usr/local/lib/keylog.so exec /usr/sbin/nginx -c /etc/nginx/bentpipe.conf
