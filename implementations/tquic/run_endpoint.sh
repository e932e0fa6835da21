#!/bin/bash
set -eu

# What tquic's own programs take when nobody asks: BBR and a window of 32 packets.
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
    # The kernel keeps SIGTERM from a container's first process unless that handles it, and tquic_server doesn't.
    # shellcheck disable=SC2086
    tquic_server --listen '[::]:443' --cert /certs/cert.pem --key /certs/priv.key --root /www \
        "${common[@]}" "${options[@]}" ${SERVER_PARAMS:-} &
    trap 'kill $!; exit 0' TERM
    wait $!
}

# fetch [OPTION...] -- URL...: all URLs over one connection. tquic_client exits with 0 whatever happens, and begins
# again on a new connection when one breaks; its summary tells.
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
        options=(--session-file /tmp/session)
        fetch "${options[@]}" -- "${urls[0]}"
        if [[ $TESTCASE == zerortt ]]; then options+=(--enable-early-data); fi
        fetch "${options[@]}" -- "${urls[@]:1}"
        ;;
    *) fetch -- "${urls[@]}" ;;
esac
