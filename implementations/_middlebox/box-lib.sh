# Functions for a middlebox's /run_box.sh. Needs ROLE and the addresses of the contract (README.md).

fail() {
    echo "$*" >&2
    exit 1
}

case ${ROLE:-} in
    terminal)
        own=$TERMINAL_ADDRESS peer=$GATEWAY_ADDRESS far4=$SERVER_NETWORK far6=${SERVER_NETWORK6:-} lan=lan0
        near4=$CLIENT_NETWORK
        ;;
    gateway)
        own=$GATEWAY_ADDRESS peer=$TERMINAL_ADDRESS far4=$CLIENT_NETWORK far6=${CLIENT_NETWORK6:-} lan=wan0
        near4=$SERVER_NETWORK
        ;;
    *) fail "ROLE is '${ROLE:-}'; it must be terminal or gateway" ;;
esac
export own peer far4 far6 near4 lan

# Applies CCA and IW to the TCP connections that this box opens itself. The runner has already set the congestion controller in
# the routes. The initial window is added here.
tcp_knobs() {
    local route found
    found=$(ip route show | sed -n 's/.*congctl \([a-z]*\).*/\1/p' | head -n 1)
    [[ -z ${CCA:-} || $CCA == "$found" ]] || fail "TCP's congestion controller is $found here, not $CCA"
    if [[ -n ${IW:-} ]]; then
        while read -r route; do
            # shellcheck disable=SC2086  # a route is words
            ip route change $route initcwnd "$IW"
        done < <(ip route show | grep -w -e sat0 -e "$lan" | grep -w congctl)
    fi
    echo "applied: cca=$found iw=${IW:-10}"
}

# Reduces the MSS option of TCP's SYN packets, so that segments fit into the tunnel. Otherwise each connection would lose its
# first flight.
clamp_segments() {
    nft -f - << 'END'
table inet tunnel {
    chain clamp {
        type filter hook forward priority mangle; policy accept;
        tcp flags syn tcp option maxseg size set rt mtu
    }
}
END
}

ready() { : > /logs/ready; }
