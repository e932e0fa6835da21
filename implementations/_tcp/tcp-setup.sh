#!/bin/bash
# Sourced by the run_endpoint.sh of stacks over TCP. Needs NET_ADMIN, which lanes give.

tcp_setup() {
    local family route available controller=${CCA:-cubic}
    available=$(< /proc/sys/net/ipv4/tcp_available_congestion_control)
    # The default is CUBIC (RFC 9438) and not the default of this host, so that results of different hosts are comparable.
    if [[ " $available " != *" $controller "* ]]; then
        echo "the kernel has no congestion controller '$controller', only: $available" >&2
        controller=$(< /proc/sys/net/ipv4/tcp_congestion_control)
    fi

    # Linux stores RTT, threshold and window of finished connections by address. The next job would begin with these values.
    ip tcp_metrics flush all

    for family in -4 -6; do
        while read -r route; do
            # /setup.sh may have deleted the on-link routes. Without `onlink` the gateway could not be reached.
            # shellcheck disable=SC2086  # a route is words
            ip "$family" route change $route onlink congctl "$controller" ${IW:+initcwnd "$IW"}
        done < <(ip "$family" route show | grep -w via | sed -E 's/ onlink//; s/ (congctl|initcwnd) [^ ]+//g')
    done
    echo "applied: cca=$controller iw=${IW:-10}"
}
