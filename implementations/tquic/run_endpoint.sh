#!/bin/bash
set -eu

# The defaults of tquic's own programs: BBR and an initial window of 32 packets.
cca=bbr window=32 refused=''
case ${CCA:-} in
    '') ;;
    cubic | bbr | bbr3 | copa) cca=$CCA ;;
    *) refused+=" CCA=$CCA" ;;
esac
if [[ ${IW:-} =~ ^[1-9][0-9]{0,2}$ ]]; then window=$IW; elif [[ -n ${IW:-} ]]; then refused+=" IW=$IW"; fi
if [[ -n ${ACK_FREQUENCY:-} ]]; then refused+=" ACK_FREQUENCY=$ACK_FREQUENCY"; fi
echo "applied: cca=$cca iw=$window"
if [[ -n $refused ]]; then echo "not applied:$refused"; fi

common=(--congestion-control-algor "$cca" --initial-congestion-window "$window" --log-level WARN)
if [[ -n ${SSLKEYLOGFILE:-} ]]; then common+=(--keylog-file "$SSLKEYLOGFILE"); fi
if [[ -n ${QLOGDIR:-} ]]; then common+=(--qlog-dir "$QLOGDIR"); fi

serve() {
    local options=()
    if [[ $TESTCASE == retry ]]; then options+=(--enable-retry); fi
    # No exec: the first process of a container ignores SIGTERM unless it has a handler, and tquic_server has none.
    # shellcheck disable=SC2086
    tquic_server --listen '[::]:443' --cert /certs/cert.pem --key /certs/priv.key --root /www \
        "${common[@]}" "${options[@]}" ${SERVER_PARAMS:-} &
    trap 'kill $!; exit 0' TERM
    wait $!
}

# fetch [OPTION...] -- URL...: fetches all URLs over one connection. tquic_client always exits with 0. When its connection
# breaks, it fetches everything again over a new connection. Its summary shows whether the first connection succeeded.
fetch() {
    local options=() output
    while [[ $1 != -- ]]; do options+=("$1"); shift; done
    shift
    # shellcheck disable=SC2086
    output=$(tquic_client --alpn "$alpn" --dump-dir /downloads --connection-failure-threshold 1 \
        --max-concurrent-requests $# "${common[@]}" "${options[@]}" ${CLIENT_PARAMS:-} "$@")
    echo "$output"
    grep -qx "requests: sent $#, finish $#, success $#" <<< "$output"
}

if [[ $ROLE == server ]]; then
    serve
    exit
fi

alpn=hq-interop
read -ra urls <<< "$REQUESTS"
case $TESTCASE in
    http3) alpn=h3 fetch -- "${urls[@]}" ;;
    multiconnect) for url in "${urls[@]}"; do fetch -- "$url"; done ;;
    resumption | zerortt)
        options=(--session-file "/tmp/session.$$")
        fetch "${options[@]}" -- "${urls[0]}"
        if [[ $TESTCASE == zerortt ]]; then options+=(--enable-early-data); fi
        fetch "${options[@]}" -- "${urls[@]:1}"
        ;;
    *) fetch -- "${urls[@]}" ;;
esac
