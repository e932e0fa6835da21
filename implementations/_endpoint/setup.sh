#!/bin/bash
# Routes all traffic of this endpoint through the simulator (.2 / ::2), even traffic to its own subnet. When the container has no
# NET_ADMIN, a step that fails is no error. The steps can be repeated, because several clients may run one after the other in the
# same network namespace. This file can be run or sourced.

# A lane sets these routes, and switches offloads off, before its endpoints start. Only the simulator is in the subnet of an
# endpoint there, so the on-link route does no harm. The check starts no process: the processes of these steps took 40 % of the
# CPU time of quinn's handshake in virtual time.
prepared() {
    local words ipv4='' ipv6=''
    while read -ra words; do
        # eth0, destination 193.167.0.0, a gateway
        [[ ${words[0]} == eth0 && ${words[1]} == 0000A7C1 && ${words[2]} != 00000000 ]] && ipv4=yes
    done < /proc/net/route
    while read -ra words; do
        # fd00:cafe:cafe::/48, a gateway, eth0
        [[ ${words[0]} == fd00cafecafe00000000000000000000 && ${words[1]} == 30 && ${words[4]//0/} && ${words[9]} == eth0 ]] && ipv6=yes
    done < /proc/net/ipv6_route
    [[ $ipv4 && $ipv6 ]]
}

make_routes() {
    local ipv4 ipv6 subnet
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
}

[[ -d /logs/qlog ]] || mkdir -p /logs/qlog
prepared 2> /dev/null || make_routes
true
