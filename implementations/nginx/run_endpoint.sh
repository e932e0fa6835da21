#!/bin/bash
set -eu
# shellcheck source=/dev/null
. /tcp-setup.sh

listen() { printf 'listen %s;\nlisten [::]:%s;\n' "$1" "$1"; }

{
    case $TESTCASE in
        h1) listen "443 ssl" ;;
        h2) listen "443 ssl"; echo "http2 on;" ;;
        *) listen "443 quic reuseport" ;;
    esac
    if [[ $TESTCASE == retry ]]; then echo "quic_retry on;"; fi
    if [[ $TESTCASE == upload ]]; then
        echo "location / { root /downloads; dav_methods PUT; client_max_body_size 0; }"
    fi
    echo "${SERVER_PARAMS:-}"
} > /run/nginx-server.conf

case $TESTCASE in
    h1 | h2) tcp_setup ;;
    # Compiled in: NewReno with an initial window of 131 054 bytes (twice the largest UDP payload that nginx accepts). These
    # are 109 packets of 1200 bytes.
    *) echo "applied: cca=newreno iw=109" ;;
esac

LD_PRELOAD=/usr/local/lib/keylog.so exec /usr/sbin/nginx -c /etc/nginx/bentpipe.conf
