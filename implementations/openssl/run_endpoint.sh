#!/bin/bash
set -eu

# NewReno from 10 packets of 1200 bytes is compiled into libssl: CCA and IW can't change it.
echo "applied: cca=newreno iw=10"

if [[ $ROLE == server ]]; then
    # Address validation by Retry is the library's default; the variable's presence switches it off.
    if [[ $TESTCASE != retry ]]; then export NO_ADDR_VALIDATE=yes; fi
    # No exec: the server has no handler for SIGTERM, and process 1 of a container ignores what it doesn't handle.
    FILEPREFIX=/www LD_PRELOAD=/usr/local/lib/keylog.so /usr/local/bin/hq-server 443 /certs/cert.pem /certs/priv.key &
    trap 'kill $!' TERM
    wait
    exit
fi

export SSL_CERT_FILE=/certs/ca.pem
if [[ $TESTCASE == chacha20 ]]; then export SSL_CIPHER_SUITES=TLS_CHACHA20_POLY1305_SHA256; fi
if [[ $TESTCASE == resumption ]]; then export SSL_SESSION_FILE=/tmp/session.pem; fi

# One connection for the URLs given; the client reads their names from a file and saves them in /downloads.
fetch() {
    local authority=${1#https://} host names=()
    authority=${authority%%/*}
    host=${authority%:*}
    for url in "$@"; do names+=("${url##*/}"); done
    echo -n "${names[*]}" > /tmp/names
    LD_PRELOAD=/usr/local/lib/keylog.so /usr/local/bin/hq-client "$host" "${authority##*:}" /tmp/names
    # Upstream's client ends with 0 when it could open no stream for the files that were left.
    for name in "${names[@]}"; do
        [[ -s /downloads/$name ]] || { echo "/downloads/$name is empty or missing" >&2; return 1; }
    done
}

read -ra urls <<< "$REQUESTS"
case $TESTCASE in
    multiconnect) for url in "${urls[@]}"; do fetch "$url"; done ;;
    resumption)
        fetch "${urls[0]}"
        fetch "${urls[@]:1}"
        ;;
    *) fetch "${urls[@]}" ;;
esac
