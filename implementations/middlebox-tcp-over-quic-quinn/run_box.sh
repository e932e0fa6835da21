#!/bin/bash
# A box of the middlebox. The terminal takes every TCP connection that comes in on lan0; the gateway waits for terminals.
set -eu

mkdir -p "${QLOGDIR:=/logs/qlog}"
# A connection is a descriptor. Many engines start with 1024.
ulimit -Sn "$(ulimit -Hn)"

if [[ $ROLE == terminal ]]; then
    # What TPROXY marks is delivered here, whatever its destination (tproxy.rst of the kernel). Without a listener the rule
    # doesn't match: the chain `closed` then keeps TCP from going out in the clear. Who asks for the listener itself, and
    # not for somebody beyond the link, is refused: carried to the gateway, that could come back for ever.
    ip rule add fwmark 1 lookup 100
    ip route add local 0.0.0.0/0 dev lo table 100
    ip -6 rule add fwmark 1 lookup 100
    ip -6 route add local ::/0 dev lo table 100
    nft -f - << 'END'
table inet tcp_over_quic {
    chain intercept {
        type filter hook prerouting priority mangle; policy accept;
        iifname "lan0" fib daddr type != local meta l4proto tcp tproxy to :8080 meta mark set 1 accept
    }
    chain direct {
        type filter hook input priority filter; policy accept;
        tcp dport 8080 meta mark != 1 reject with tcp reset
    }
    chain closed {
        type filter hook forward priority filter; policy accept;
        iifname "lan0" oifname "sat0" meta l4proto tcp reject with tcp reset
    }
}
END
fi
exec tcp-over-quic
