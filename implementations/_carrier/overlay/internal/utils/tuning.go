package utils

import (
	"net"
	"time"

	"github.com/quic-go/quic-go/internal/protocol"
)

// Tuning has settings for values that are constants in quic-go. A zero field keeps quic-go's value.
type Tuning struct {
	InitialWindow int           // congestion window at the start (RFC 9002 §7.2), in packets; quic-go: 32
	Cubic         bool          // CUBIC (RFC 9438) instead of NewReno (RFC 9002 §7)
	BBR           bool          // BBR instead of both
	Flows         int           // connections that CUBIC emulates (Chromium's N-connection emulation); quic-go: 1
	SlowStart     string        // the condition that ends slow start, besides a loss; quic-go: its own HyStart
	AckEvery      int           // ack-eliciting packets per ACK (RFC 9000 §13.2.2), from packet AckAfter on; quic-go: 2
	AckAfter      int           // below this packet number, every second packet causes an ACK
	MaxAckDelay   time.Duration // max_ack_delay (RFC 9000 §18.2); quic-go: 25 ms
	Paths         *PathMemory   // capacities for Careful Resume (RFC 9959), common to all connections; nil: off
}

// Values of Tuning.SlowStart.
const (
	StandardSlowStart = "standard"  // no condition (RFC 9002 §7.3.1)
	HyStartPlusPlus   = "hystartpp" // RTTs that rise over several rounds (RFC 9406)
)

const (
	defaultInitialWindow = 32
	defaultAckEvery      = 2
	defaultMaxAckDelay   = 25 * time.Millisecond
)

// Tune sets the tuning of a connection between two addresses.
func (r *RTTStats) Tune(tuning Tuning, local, remote net.Addr) {
	r.Tuning, r.Path = tuning, tuning.Paths.Path(local, remote)
}

// WindowPackets is the initial congestion window in packets.
func (t Tuning) WindowPackets() protocol.ByteCount {
	if t.InitialWindow > 0 {
		return protocol.ByteCount(t.InitialWindow)
	}
	return defaultInitialWindow
}

// FlowCount is the number of connections that CUBIC emulates.
func (t Tuning) FlowCount() int { return max(t.Flows, 1) }

// AckDelay is the longest delay of an ACK.
func (t Tuning) AckDelay() time.Duration {
	if t.MaxAckDelay > 0 {
		return t.MaxAckDelay
	}
	return defaultMaxAckDelay
}

// PacketsBeforeAck is the number of ack-eliciting packets that cause an ACK, after packet largest has arrived.
func (t Tuning) PacketsBeforeAck(largest protocol.PacketNumber) int {
	switch {
	case t.AckEvery <= 0:
		return defaultAckEvery
	case largest < protocol.PacketNumber(t.AckAfter):
		return min(t.AckEvery, defaultAckEvery)
	default:
		return t.AckEvery
	}
}
