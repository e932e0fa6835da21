#!/bin/bash
# Server `origin` and client `downloader`. The client's measurements are in /logs/workload.json.
set -eu

if [[ $ROLE == server ]]; then
    cat /certs/cert.pem /certs/priv.key > /run/origin.pem
    /usr/sbin/nginx -c /etc/nginx/bentpipe.conf &
    haproxy -db -f /etc/haproxy/bentpipe.cfg &
    # No exec: HAProxy has no handler for SIGTERM, and the first process of a container ignores signals that it doesn't
    # handle.
    trap 'kill $(jobs -p); wait; exit 0' TERM
    wait -n
    exit 1
fi

case $PROTOCOL in
    http/1.1) version=--http1.1 ;;
    h2) version=--http2 ;;
    h3) version=--http3-only ;;
    *) echo "PROTOCOL '$PROTOCOL' is none of http/1.1, h2, h3" >&2; exit 127 ;;
esac

download() {
    curl "$version" --fail --silent --show-error --cacert /certs/ca.pem --header "Authorization: Bearer $SECRET" "$@"
}

# WARM: download everything once before the measurement, then wait for WARM seconds.
if [[ -n ${WARM:-} ]]; then
    for request in $REQUESTS; do download --output /dev/null "$request" || true; done
    sleep "$WARM"
fi
date +%s.%N > /logs/began
# shellcheck disable=SC2086  # a list separated by spaces
download --output-dir /downloads --remote-name-all --write-out '%output{/logs/workload.json}%{json}' $REQUESTS
