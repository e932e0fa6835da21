#!/bin/bash
# HAProxy ends each TCP connection that passes this box, and opens another connection to its destination, from the client's
# own address. Nothing is encrypted. With one such box the PEP is integrated; with two boxes it is distributed.
set -eu
# shellcheck source=/dev/null
. /box-lib.sh

tcp_knobs

# TPROXY directs TCP packets for other hosts to HAProxy's socket. Answers to connections that HAProxy opened with the client's
# address already belong to one of its sockets. Both get mark 1; in the routing table of this mark, every address is local.
nft -f - << 'END'
table inet pep {
    chain divert {
        type filter hook prerouting priority mangle; policy accept;
        meta l4proto tcp socket transparent 1 meta mark set 1 accept
        ip protocol tcp fib daddr type != local tproxy ip to :9000 meta mark set 1 accept
        ip6 nexthdr tcp fib daddr type != local tproxy ip6 to :9000 meta mark set 1 accept
    }
    # Without HAProxy, TPROXY matches nothing, and connections would pass as if there were no PEP. This chain drops them.
    chain closed {
        type filter hook forward priority filter; policy accept;
        meta l4proto tcp drop
    }
}
END
ip rule add fwmark 1 lookup 100
ip route add local 0.0.0.0/0 dev lo table 100
ip -6 rule add fwmark 1 lookup 100
ip -6 route add local ::/0 dev lo table 100

cat > /run/haproxy.cfg << 'END'
global
    nbthread 1
    maxconn 4000
    log stdout format raw local0
    # Large buffers, so that HAProxy never limits a transfer.
    tune.bufsize 65536
    tune.pipesize 1048576
    tune.maxpollevents 200
defaults
    mode tcp
    log global
    option tcplog
    option splice-auto
    timeout connect 30s
    timeout client 300s
    timeout server 300s
frontend intercepted4
    bind 0.0.0.0:9000 transparent
    default_backend wanted4
frontend intercepted6
    bind [::]:9000 v6only transparent
    default_backend wanted6
backend wanted4
    option transparent
    source 0.0.0.0 usesrc clientip
backend wanted6
    option transparent
    source [::] usesrc clientip
END

haproxy -db -f /run/haproxy.cfg &
proxy=$!
trap 'kill $proxy' TERM
until ss -Hltn 'sport = :9000' | grep -q 9000; do sleep 0.05; done
ready
wait $proxy || true
