#!/bin/bash
set -eu

# NewReno with an initial window of 10 packets of 1200 bytes is compiled into libssl: CCA and IW can't change it.
echo "applied: cca=newreno iw=10"

if [[ $ROLE == server ]]; then
    # By default, the library validates addresses by Retry. This variable, with any value, switches that off.
    if [[ $TESTCASE != retry ]]; then export NO_ADDR_VALIDATE=yes; fi
    # The server frees large memory and takes it again. Without these settings malloc returns it to the kernel each time, and
    # the next use costs a page fault for every 4 KiB: a million in a download of 10 MiB with some clients.
    export MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=536870912
    # No exec: the server has no handler for SIGTERM, and the first process of a container ignores signals that it doesn't
    # handle.
    FILEPREFIX=/www LD_PRELOAD=/usr/local/lib/keylog.so /usr/local/bin/hq-server 443 /certs/cert.pem /certs/priv.key &
    trap 'kill $!' TERM
    wait
    exit
fi

export SSL_CERT_FILE=/certs/ca.pem
if [[ $TESTCASE == chacha20 ]]; then export SSL_CIPHER_SUITES=TLS_CHACHA20_POLY1305_SHA256; fi
if [[ $TESTCASE == resumption ]]; then export SSL_SESSION_FILE=/tmp/session.pem; fi

# fetch URL...: fetches the URLs over one connection. The client reads their names from a file and saves them in /downloads.
fetch() {
    local authority=${1#https://} host names=()
    authority=${authority%%/*}
    host=${authority%:*}
    for url in "$@"; do names+=("${url##*/}"); done
    echo -n "${names[*]}" > "/tmp/names.$$" # several of these scripts can run at the same time
    LD_PRELOAD=/usr/local/lib/keylog.so /usr/local/bin/hq-client "$host" "${authority##*:}" "/tmp/names.$$"
    # Upstream's client exits with 0 even when it could not open a stream for some of the files.
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
