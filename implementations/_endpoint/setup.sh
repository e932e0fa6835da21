#!/bin/bash
# Routes this endpoint's traffic through the simulator: everything, even a neighbour on the own subnet, goes to .2 / ::2.
# A lane that drops NET_ADMIN has done these steps from outside, so a refused step is no failure; and they can be repeated,
# because client after client may run in one network namespace.

mkdir -p /logs/qlog

read -r ipv4 ipv6 _ <<< "$(hostname -I)"

if [[ $ipv4 == *.* ]]; then
    subnet=${ipv4%.*}
    ip route replace 193.167.0.0/16 via "$subnet.2" dev eth0 onlink
    ip route flush exact "$subnet.0/24" dev eth0
fi

if [[ $ipv6 == *:* ]]; then
    subnet=${ipv6%:*}
    ip -6 route replace fd00:cafe:cafe::/48 via "$subnet:2" dev eth0 onlink
    ip -6 route flush exact "$subnet:/64" dev eth0
fi

# The simulator forwards raw packets: they must carry their checksums, one datagram each.
ethtool -K eth0 tx off

exit 0
