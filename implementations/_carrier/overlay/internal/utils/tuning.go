package utils

import (
	"time"

	"github.com/quic-go/quic-go/internal/protocol"
)

// Tuning holds what quic-go compiles in. A zero field keeps quic-go's own value.
type Tuning struct {
	InitialWindow int           // congestion window at the start (RFC 9002 §7.2), in packets; quic-go: 32
	Cubic         bool          // CUBIC (RFC 9438) in place of NewReno (RFC 9002 §7)
	BBR           bool          // BBR in place of both
	Flows         int           // connections that CUBIC stands for (Chromium's N-connection emulation); quic-go: 1
	SlowStart     string        // what ends slow start beside a loss; quic-go: a HyStart of its own
	AckEvery      int           // ack-eliciting packets per ACK (RFC 9000 §13.2.2), from packet AckAfter on; quic-go: 2
	AckAfter      int           // packet number below which two packets make an ACK
	MaxAckDelay   time.Duration // max_ack_delay (RFC 9000 §18.2); quic-go: 25 ms
}

// Values of Tuning.SlowStart.
const (
	StandardSlowStart = "standard"  // nothing (RFC 9002 §7.3.1)
	HyStartPlusPlus   = "hystartpp" // RTTs that rise for rounds (RFC 9406)
)

const (
	defaultInitialWindow = 32
	defaultAckEvery      = 2
	defaultMaxAckDelay   = 25 * time.Millisecond
)

// WindowPackets is the initial congestion window in packets.
func (t Tuning) WindowPackets() protocol.ByteCount {
	if t.InitialWindow > 0 {
		return protocol.ByteCount(t.InitialWindow)
	}
	return defaultInitialWindow
}

// FlowCount is the number of connections that CUBIC stands for.
func (t Tuning) FlowCount() int { return max(t.Flows, 1) }

// AckDelay is the longest time for which an ACK is held back.
func (t Tuning) AckDelay() time.Duration {
	if t.MaxAckDelay > 0 {
		return t.MaxAckDelay
	}
	return defaultMaxAckDelay
}

// PacketsBeforeAck is the number of ack-eliciting packets that make an ACK once packet largest has come.
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
