#!/bin/bash
# The terminal box intercepts each TCP connection that arrives on lan0. The gateway box waits for the terminal.
set -eu

tcp_port=8080 udp_port=${LINK_PORT:-4242} mark=1 table=100

export KEY=/keys/$ROLE.key CERTIFICATE=/keys/$ROLE.pem CA=/keys/ca.pem READY=/logs/ready
# On an emulated link, TCP's segmentation offload is off. Then UDP's must be off, too: the link would count a batch of UDP
# datagrams as one packet.
if ethtool -k sat0 | grep -q '^tcp-segmentation-offload: off'; then ethtool -K sat0 tx-udp-segmentation off; fi

if [[ $ROLE == gateway ]]; then
    exec qpep gateway -listen ":$udp_port"
fi

# Packets that TPROXY marks are delivered here, whatever their destination (tproxy.rst of the kernel). Without a listener the
# rule doesn't match; the second chain then rejects TCP, so that no data leaves unencrypted.
ip rule add fwmark $mark lookup $table
ip route add local 0.0.0.0/0 dev lo table $table
ip -6 rule add fwmark $mark lookup $table
ip -6 route add local ::/0 dev lo table $table
nft -f - <<RULES
table inet qpep {
    chain intercept {
        type filter hook prerouting priority mangle; policy accept;
        iifname "lan0" ip daddr ${TERMINAL_ADDRESS} return
        iifname "lan0" ip6 daddr { fe80::/10, ${TERMINAL_ADDRESS6} } return
        iifname "lan0" meta l4proto tcp tproxy to :$tcp_port meta mark set $mark accept
    }
    chain closed {
        type filter hook forward priority filter; policy accept;
        iifname "lan0" oifname "sat0" meta l4proto tcp reject with tcp reset
    }
}
RULES
exec qpep terminal -gateway "$GATEWAY_ADDRESS:$udp_port" -port "$tcp_port"
