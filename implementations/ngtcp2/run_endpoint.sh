#!/bin/bash
set -euo pipefail

options=(--quiet --no-gso)
if [[ -n ${QLOGDIR:-} ]]; then options+=(--qlog-dir "$QLOGDIR"); fi

refused=''
cca=${CCA:-cubic}
case $cca in
    cubic | bbr) options+=(--cc "$cca") ;;
    newreno) options+=(--cc reno) ;;
    *) cca=cubic refused+=" CCA=$CCA" ;;
esac
ack=${ACK_FREQUENCY:-2}
options+=(--ack-thresh "$ack")
if [[ ${IW:-10} != 10 ]]; then refused+=" IW=$IW"; fi
echo "applied: cca=$cca iw=10 ack=$ack"
if [[ -n $refused ]]; then echo "not applied:$refused"; fi

# Each of upstream's programs speaks only one protocol.
program=osslhq
if [[ $TESTCASE == http3 ]]; then program=ossl; fi

serve() {
    case $TESTCASE in
        retry) options+=(--validate-addr) ;;
        v2) options+=(--preferred-versions "v2,v1") ;;
        multiconnect) options+=(--timeout 180s) ;;
        connectionmigration)
            for address in $(hostname -I); do
                if [[ $address == *:* ]]; then
                    options+=(--preferred-ipv6-addr "[$address]:4443")
                else
                    options+=(--preferred-ipv4-addr "$address:4443")
                fi
            done
            ;;
    esac
    # Only SIGINT ends the program cleanly, with complete qlogs.
    # shellcheck disable=SC2086  # a list separated by spaces
    "${program}server" "${options[@]}" --htdocs /www ${SERVER_PARAMS:-} '*' 443 /certs/priv.key /certs/cert.pem &
    local server=$!
    trap 'kill -INT "$server"; wait "$server"; exit' TERM
    wait "$server"
}

state=$(mktemp -d)

# fetch URL...: fetches all URLs at the same time over one connection. When a connection fails, upstream's client still exits
# with 0, but prints the name of a library function with its error to stderr. ERR_RECV_VERSION_NEGOTIATION is no failure: the
# client then continues with another version.
fetch() {
    local host=${1#https://} url
    host=${host%%/*}
    # shellcheck disable=SC2086
    "${program}client" "${options[@]}" --exit-on-all-streams-close --download /downloads ${CLIENT_PARAMS:-} \
        "${host%:*}" "${host##*:}" "$@" 2>&1 | tee "$state/output"
    if grep '^ng\(tcp2\|http3\)_' "$state/output" | grep -v ': ERR_RECV_VERSION_NEGOTIATION$'; then return 1; fi
    for url in "$@"; do [[ -f /downloads/${url##*/} ]] || return 1; done
}

if [[ $ROLE == server ]]; then
    serve
    exit
fi

case $TESTCASE in
    chacha20) options+=(--ciphers TLS_CHACHA20_POLY1305_SHA256) ;;
    keyupdate) options+=(--key-update 10ms) ;;
    v2) options+=(--available-versions "v2,v1" --preferred-versions "v2,v1") ;;
    versionnegotiation) options+=(--version 0x1a2a3a4a --preferred-versions v1) ;;
    connectionmigration) options+=(--change-local-addr 100ms) ;;
    multiconnect) options+=(--timeout 180s) ;;
    resumption) options+=(--session-file "$state/session" --disable-early-data) ;;
    zerortt) options+=(--session-file "$state/session" --tp-file "$state/parameters") ;;
esac

read -ra urls <<< "$REQUESTS"
case $TESTCASE in
    multiconnect) for url in "${urls[@]}"; do fetch "$url"; done ;;
    resumption | zerortt)
        options+=(--wait-for-ticket)
        fetch "${urls[0]}"
        unset 'options[-1]'
        fetch "${urls[@]:1}"
        ;;
    *) fetch "${urls[@]}" ;;
esac
