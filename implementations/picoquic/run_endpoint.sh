#!/bin/bash
set -euo pipefail

# Options of upstream's program: -0 switches GSO off, -8 writes the key log, -L logs more than the first 100 packets to qlogs.
options=(-0 -8 -L)
if [[ -n ${QLOGDIR:-} ]]; then options+=(-q "$QLOGDIR"); fi

refused=''
case ${CCA:-bbr} in
    bbr | bbr1 | newreno | cubic | dcubic | fast | prague | c4) cca=${CCA:-bbr} ;;
    *) cca=bbr refused+=" CCA=$CCA" ;;
esac
options+=(-G "$cca")
if [[ ${IW:-10} != 10 ]]; then refused+=" IW=$IW"; fi
if [[ -n ${ACK_FREQUENCY:-} ]]; then refused+=" ACK_FREQUENCY=$ACK_FREQUENCY"; fi
echo "applied: cca=$cca iw=10"
if [[ -n $refused ]]; then echo "not applied:$refused"; fi

# Tickets and tokens are kept only as long as the container, so that no server is offered those of another server.
state=$(mktemp -d)
options+=(-T "$state/tickets" -N "$state/tokens")

serve() {
    [[ $TESTCASE == retry ]] && options+=(-r)
    if [[ $TESTCASE == connectionmigration ]]; then
        options+=(-p 443:4443)
        for address in $(hostname -I); do
            if [[ $address == *:* ]]; then options+=(-6 "$address"); else options+=(-4 "$address"); fi
        done
    else
        options+=(-p 443)
    fi
    # The program handles no signal, so as the first process of a container it would ignore SIGTERM. Therefore the shell stays
    # the first process. After SIGTERM it waits for a second, in which closed connections end and write their qlogs.
    # shellcheck disable=SC2086  # a list separated by spaces
    stdbuf -oL picoquicdemo "${options[@]}" -c /certs/cert.pem -k /certs/priv.key -w /www ${SERVER_PARAMS:-} &
    local server=$!
    trap 'sleep 1; kill "$server"; wait "$server" || true; exit 0' TERM
    wait "$server"
}

# fetch URL...: fetches all URLs at the same time over one connection. The program always exits with 0, and prints the real
# exit code.
fetch() {
    local url path host='' port='' scenario='' names=()
    for url in "$@"; do
        path=${url#https://*/}
        host=${url#https://} host=${host%%/*} port=${host##*:} host=${host%:*}
        scenario+="-:/$path;"
        names+=("${path##*/}")
    done
    # shellcheck disable=SC2086
    stdbuf -oL picoquicdemo "${options[@]}" -n "$host" -t /certs/ca.pem -o /downloads ${CLIENT_PARAMS:-} \
        "$host" "$port" "$scenario" 2>&1 | tee "$state/output"
    grep -qx 'Client exit with code = 0' "$state/output" || return 1
    for path in "${names[@]}"; do [[ -f /downloads/$path ]] || return 1; done
}

if [[ $ROLE == server ]]; then
    serve
    exit
fi

alpn=hq-interop
case $TESTCASE in
    http3) alpn=h3 ;;
    chacha20) options+=(-C 20) ;;
    keyupdate) options+=(-u 100) ;;
    v2) options+=(-U 6b3343cf) ;;
    connectionmigration) options+=(-f 3) ;;
esac
options+=(-a "$alpn")

read -ra urls <<< "$REQUESTS"
case $TESTCASE in
    multiconnect) for url in "${urls[@]}"; do fetch "$url"; done ;;
    resumption | zerortt)
        fetch "${urls[0]}"
        fetch "${urls[@]:1}"
        ;;
    *) fetch "${urls[@]}" ;;
esac
