package congestion

import (
	"time"

	"github.com/quic-go/quic-go/internal/protocol"
	"github.com/quic-go/quic-go/internal/utils"
)

// Constants of HyStart++ (RFC 9406 §4.3).
const (
	minRTTThreshold  = 4 * time.Millisecond
	maxRTTThreshold  = 16 * time.Millisecond
	minRTTDivisor    = 8
	rttSamples       = 8
	cssGrowthDivisor = 4
	cssRounds        = 5
)

// slowStart decides when slow start ends without a loss, and how fast the window grows until then. It replaces quic-go's HyStart.
type slowStart struct {
	HybridSlowStart
	end  string
	plus hystartPlusPlus
}

func slowStartOf(tuning utils.Tuning) slowStart {
	s := slowStart{end: tuning.SlowStart}
	s.plus.restart()
	return s
}

// ShouldExitSlowStart is called for each new sample of the RTT. The window is in packets.
func (s *slowStart) ShouldExitSlowStart(latest, least time.Duration, window protocol.ByteCount) bool {
	switch s.end {
	case utils.StandardSlowStart:
		return false
	case utils.HyStartPlusPlus:
		return s.plus.sampled(latest)
	default:
		return s.HybridSlowStart.ShouldExitSlowStart(latest, least, window)
	}
}

func (s *slowStart) OnPacketSent(number protocol.PacketNumber) {
	s.HybridSlowStart.OnPacketSent(number)
	s.plus.lastSent = number
}

func (s *slowStart) OnPacketAcked(number protocol.PacketNumber) {
	s.HybridSlowStart.OnPacketAcked(number)
	s.plus.acked(number)
}

func (s *slowStart) Restart() {
	s.HybridSlowStart.Restart()
	s.plus.restart()
}

// growth is the number of bytes that an acknowledged packet adds to the window.
func (s *slowStart) growth(packet protocol.ByteCount) protocol.ByteCount {
	if s.end == utils.HyStartPlusPlus && s.plus.conservative() {
		return packet / cssGrowthDivisor
	}
	return packet
}

// hystartPlusPlus implements RFC 9406 §4.2 for a paced sender. A rising RTT makes slow start conservative. When the RTT falls
// again, as after a burst, normal slow start continues. An RTT of 0 means infinity in the RFC.
type hystartPlusPlus struct {
	lastSent, windowEnd             protocol.PacketNumber
	lastMinRTT, minRTT, cssBaseline time.Duration
	samples, rounds                 int // samples of this round; rounds of conservative slow start
}

func (h *hystartPlusPlus) restart() {
	*h = hystartPlusPlus{lastSent: h.lastSent, windowEnd: h.lastSent}
}

func (h *hystartPlusPlus) conservative() bool { return h.cssBaseline != 0 }

// sampled uses an RTT sample, and reports whether slow start has ended.
func (h *hystartPlusPlus) sampled(rtt time.Duration) bool {
	h.samples++
	if h.minRTT == 0 || rtt < h.minRTT {
		h.minRTT = rtt
	}
	if h.samples < rttSamples {
		return false
	}
	switch {
	case h.conservative():
		if h.minRTT < h.cssBaseline {
			h.cssBaseline, h.rounds = 0, 0
		}
	case h.lastMinRTT != 0:
		threshold := max(minRTTThreshold, min(h.lastMinRTT/minRTTDivisor, maxRTTThreshold))
		if h.minRTT >= h.lastMinRTT+threshold {
			h.cssBaseline = h.minRTT
		}
	}
	return h.rounds >= cssRounds
}

// acked ends a round. A round with too few samples doesn't count for the end of conservative slow start: a sender that is limited
// by its application has many such rounds.
func (h *hystartPlusPlus) acked(number protocol.PacketNumber) {
	if number < h.windowEnd {
		return
	}
	if h.conservative() && h.samples >= rttSamples {
		h.rounds++
	}
	h.lastMinRTT, h.minRTT, h.samples = h.minRTT, 0, 0
	h.windowEnd = h.lastSent
}
