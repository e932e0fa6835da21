#!/bin/sh
# Adds the field `Config.Tuning` to the quic-go in DIRECTORY (a vendored v0.65.0): settings per connection for values that are
# constants in upstream's source.
# Usage: tune.sh DIRECTORY. Each edit is checked; another version of quic-go stops the build.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
cp -R "$here/overlay/." .

# edit FILE COUNT REGEX SED: SED changes exactly COUNT lines of FILE that match REGEX.
edit() {
    found=$(grep -cE -- "$3" "$1" || true)
    if [ "$found" != "$2" ]; then
        echo "tune.sh: $1 has $found lines like '$3' instead of $2: this is another version of quic-go" >&2
        exit 1
    fi
    sed -i -E -- "$4" "$1"
}

# Config → connection.
edit interface.go 1 '^	Tracer func\(ctx' 's/^(	Tracer func\(ctx.*)$/	Tuning Tuning\n\n\1/'
edit config.go 1 'Tracer: +config\.Tracer,' 's/^(.*Tracer: +config\.Tracer,)$/\1\n		Tuning: config.Tuning,/'
edit connection.go 1 'c\.rttStats = utils\.NewRTTStats\(\)' \
    's/^(.*c\.rttStats = utils\.NewRTTStats\(\))$/\1\n	c.rttStats.Tune(c.config.Tuning, c.conn.LocalAddr(), c.conn.RemoteAddr())/'
edit connection.go 1 'c\.handleCloseError\(closeErr\)' 's/^(	)(c\.handleCloseError\(closeErr\))$/\1c.rttStats.Path.End()\n\1\2/'

# Connection → sender. The sender already has the RTT statistics, so they carry the tuning. After a
# migration the path's saved capacity is that of another path.
edit internal/utils/rtt_stats.go 1 '^type RTTStats struct' 's/^(type RTTStats struct.*)$/\1\n	Tuning Tuning\n	Path   *Path\n/'
edit internal/utils/rtt_stats.go 1 '^func \(r \*RTTStats\) ResetForPathMigration' 's/^(func .*ResetForPathMigration.*)$/\1\n	r.Path = nil/'
edit internal/congestion/cubic_sender.go 1 '	initialCongestionWindow\*initialMaxDatagramSize,' \
    's/initialCongestionWindow(\*initialMaxDatagramSize,)/rttStats.Tuning.WindowPackets()\1/'
edit internal/congestion/cubic_sender.go 1 'cubic: +NewCubic\(clock\),' 's/NewCubic\(clock\)/cubicOf(clock, rttStats.Tuning.FlowCount())/'
edit internal/congestion/cubic_sender.go 1 '^	hybridSlowStart HybridSlowStart$' 's/HybridSlowStart$/slowStart/'
edit internal/congestion/cubic_sender.go 1 '^		rttStats: +rttStats,' 's/^(		rttStats: +rttStats,)$/		hybridSlowStart: slowStartOf(rttStats.Tuning),\n\1/'
edit internal/congestion/cubic_sender.go 1 '// TCP slow start, exponential growth' \
    '/TCP slow start, exponential growth/,/return/ s/(congestionWindow \+= )c\.maxDatagramSize/\1c.hybridSlowStart.growth(c.maxDatagramSize)/'
edit internal/ackhandler/sent_packet_handler.go 2 'congestion\.NewCubicSender\(' 's/NewCubicSender/NewSender/'
edit internal/ackhandler/sent_packet_handler.go 2 'true, // use Reno' '/^		h\.connStats,/,/use Reno/ s/true, \/\/ use Reno/!h.rttStats.Tuning.Cubic,/'
edit internal/ackhandler/sent_packet_handler.go 1 'true, // use Reno' 's/true, \/\/ use Reno/!rttStats.Tuning.Cubic,/'

# Connection → receiver of packets. The alarm keeps the time that the oldest packet has set. In upstream, with more than two
# packets per ACK, each packet would postpone the alarm.
edit connection.go 1 'c\.receivedPacketHandler = \*ackhandler' \
    's/^(.*c\.receivedPacketHandler = \*ackhandler.*)$/\1\n	c.receivedPacketHandler.Tune(c.config.Tuning)/'
edit connection.go 2 'ackhandler\.MaxAckDelay \+' 's/ackhandler\.MaxAckDelay \+/s.config.Tuning.AckDelay() +/'
tracker=internal/ackhandler/received_packet_tracker.go
edit $tracker 1 '^type appDataReceivedPacketTracker struct' 's/^(type appDataReceivedPacketTracker struct.*)$/\1\n	tuning utils.Tuning\n/'
edit $tracker 1 '	if !h\.ackQueued \{' 's/	if !h\.ackQueued \{/	if !h.ackQueued \&\& h.ackAlarm.IsZero() {/'
edit $tracker 1 'rcvTime\.Add\(MaxAckDelay\)' 's/rcvTime\.Add\(MaxAckDelay\)/rcvTime.Add(h.tuning.AckDelay())/'
edit $tracker 1 '>= packetsBeforeAck' 's/>= packetsBeforeAck/>= h.tuning.PacketsBeforeAck(h.largestObserved)/'

# A stateless reset is shorter than the packet that it answers, and has at least 21 bytes (RFC 9000 §10.3). Upstream's reset has
# 42 bytes, so upstream does not answer shorter packets. The PING of a keep-alive has 25 bytes, so an idle peer would not notice
# that a listener was restarted.
edit transport.go 1 'len\(p\.data\) <= protocol\.MinStatelessResetSize' '/<= protocol/ s/MinStatelessResetSize/MinReceivedStatelessResetSize/'
edit transport.go 1 '^	data := make\(\[\]byte, protocol\.MinStatelessResetSize-16' \
    's/^	data := make.*StatelessResetSize-16.*$/	size := min(protocol.MinStatelessResetSize, len(p.data)-1)\n	data := make([]byte, size-16, size)/'

gofmt -w interface.go config.go connection.go internal/utils internal/congestion internal/ackhandler
