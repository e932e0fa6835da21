#!/bin/bash
# The terminal box intercepts each TCP connection that arrives on lan0. The gateway box waits for the terminal.
set -eu

mkdir -p "${QLOGDIR:=/logs/qlog}"
# Each connection needs a descriptor. Many engines start containers with a limit of 1024.
ulimit -Sn "$(ulimit -Hn)"

if [[ $ROLE == terminal ]]; then
    # Packets that TPROXY marks are delivered here, whatever their destination (tproxy.rst of the kernel). Without a listener
    # the rule doesn't match; the chain `closed` then rejects TCP, so that no data leaves unencrypted. The chain `direct`
    # rejects connections to the listener's own port: the gateway could send such a connection back, again and again.
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
