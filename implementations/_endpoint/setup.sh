#!/bin/bash
# Routes all traffic of this endpoint through the simulator (.2 / ::2), even traffic to its own subnet. When the container has no
# NET_ADMIN, the lane has done these steps from outside, so a step that fails is no error. The steps can be repeated, because
# several clients may run one after the other in the same network namespace.

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

# The simulator forwards raw packets: each packet must contain its checksum, and only one datagram.
ethtool -K eth0 tx off

exit 0
