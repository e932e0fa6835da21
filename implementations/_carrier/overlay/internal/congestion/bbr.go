package congestion

import (
	"time"

	"github.com/quic-go/quic-go/internal/monotime"
	"github.com/quic-go/quic-go/internal/protocol"
	"github.com/quic-go/quic-go/internal/utils"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

// Constants of BBR. v1: draft-cardwell-iccrg-bbr-congestion-control-00; v3: draft-ietf-ccwg-bbr.
const (
	startupGain       = 2.77 // v3, 4 ln 2
	drainGain         = 0.5  // v3
	windowGain        = 2.0
	fullGrowth        = 1.25 // growth of the rate in a round; with less, the path is full
	fullRounds        = 3
	fullLosses        = 6    // v3: number of lost packets in a round that ends Startup,
	fullLossShare     = 0.02 // if they are at least this share of the delivered bytes
	bandwidthRounds   = 10
	minRTTAge         = 10 * time.Second
	probeRTTTime      = 200 * time.Millisecond
	probeRTTGain      = 0.5  // v3; v1 nearly stops for an RTT or more, which is a tenth of the time over GEO
	rateMargin        = 0.99 // v3: share of the measured rate
	bbrMinimumPackets = 4
	bbrQuanta         = 3 // number of bursts that the window has in addition to the BDP
)

var cycle = [...]float64{1.25, 0.75, 1, 1, 1, 1, 1, 1} // v1

type bbrState int

const (
	startup bbrState = iota
	drain
	probeBandwidth
	probeRTT
)

// bbr sends at the rate at which the path delivers, independent of loss. It is version 1 with Startup and ProbeRTT of version 3.
// A loss changes neither rate nor window; only a loss of 2 % in a round ends Startup.
type bbr struct {
	delivery
	rttStats  *utils.RTTStats
	connStats *utils.ConnectionStats
	qlogger   qlogwriter.Recorder
	pacer     *pacer
	datagram  protocol.ByteCount
	initial   protocol.ByteCount

	state      bbrState
	window     protocol.ByteCount
	pacingGain float64
	bandwidth  maxFilter
	minRTT     time.Duration
	minRTTAt   monotime.Time
	lastEvent  monotime.Time // time of the ACK whose packets are being counted

	round         int
	roundEnd      protocol.ByteCount // value of delivered at its end
	roundBegan    protocol.ByteCount // value of delivered at its beginning
	roundLosses   int
	roundLost     protocol.ByteCount
	full          bool
	fullBandwidth Bandwidth
	flatRounds    int

	phase   int
	phaseAt monotime.Time

	probeEnd   monotime.Time // end of ProbeRTT; zero: the bytes in flight are still above its window
	probeRound int
	before     protocol.ByteCount // the window before ProbeRTT
}

var _ SendAlgorithmWithDebugInfos = &bbr{}

// NewSender makes the controller of the connection's tuning. reno is a parameter of NewCubicSender.
func NewSender(
	clock Clock,
	rttStats *utils.RTTStats,
	connStats *utils.ConnectionStats,
	datagram protocol.ByteCount,
	reno bool,
	qlogger qlogwriter.Recorder,
) SendAlgorithmWithDebugInfos {
	if !rttStats.Tuning.BBR {
		sender := NewCubicSender(clock, rttStats, connStats, datagram, reno, qlogger)
		if rttStats.Path != nil {
			return newCarefulSender(sender, rttStats.Path)
		}
		return sender
	}
	window := rttStats.Tuning.WindowPackets() * datagram
	b := &bbr{
		delivery:   delivery{packets: make(map[protocol.PacketNumber]departure)},
		rttStats:   rttStats,
		connStats:  connStats,
		qlogger:    qlogger,
		pacer:      newPacer(),
		datagram:   datagram,
		initial:    window,
		window:     window,
		pacingGain: startupGain,
	}
	b.connStats.CongestionWindow.Store(uint64(window))
	b.tell(qlog.CongestionStateSlowStart)
	return b
}

func (b *bbr) OnPacketSent(now monotime.Time, inFlight protocol.ByteCount, number protocol.PacketNumber, size protocol.ByteCount, ackEliciting bool) {
	b.pacer.SentPacket(now, size, b.rate())
	if ackEliciting {
		b.sent(number, size, inFlight, now)
	}
}

func (b *bbr) OnPacketAcked(number protocol.PacketNumber, size, priorInFlight protocol.ByteCount, now monotime.Time) {
	if now != b.lastEvent {
		b.lastEvent = now
		if b.idle(priorInFlight, now) {
			b.limitedByApplication()
		}
	}
	found, ok := b.acked(number, b.minRTT, now)
	if !ok {
		return
	}
	began := found.delivered >= b.roundEnd
	if began {
		b.roundEnd = b.delivered
		b.round++
	}
	if found.rate > 0 && (!found.appLimited || found.rate >= b.bandwidth.largest()) {
		b.bandwidth.add(found.rate, b.round)
	}
	if began {
		b.endRound(found.appLimited)
	}
	expired := b.sampleRTT(now)
	b.advance(priorInFlight, now)
	b.probe(expired && !found.appLimited, now)
	b.grow(size)
	b.connStats.CongestionWindow.Store(uint64(b.window))
}

// idle reports whether the sender had nothing to send for some time.
func (b *bbr) idle(inFlight protocol.ByteCount, now monotime.Time) bool {
	burst := b.pacer.maxBurstSize(b.rate())
	return inFlight+burst < b.window && b.pacer.Budget(now, b.rate()) >= burst
}

// endRound checks whether the path is full: its rate no longer grows, or it loses a large share.
func (b *bbr) endRound(appLimited bool) {
	losses, lost, delivered := b.roundLosses, b.roundLost, b.delivered-b.roundBegan
	b.roundLosses, b.roundLost, b.roundBegan = 0, 0, b.delivered
	if b.full {
		return
	}
	if losses >= fullLosses && float64(lost) > fullLossShare*float64(lost+delivered) {
		b.full = true
	}
	if appLimited {
		return
	}
	if now := b.bandwidth.largest(); float64(now) >= fullGrowth*float64(b.fullBandwidth) {
		b.fullBandwidth, b.flatRounds = now, 0
	} else if b.flatRounds++; b.flatRounds >= fullRounds {
		b.full = true
	}
}

// sampleRTT keeps the smallest RTT of the last ten seconds. It returns true when the kept RTT was older.
func (b *bbr) sampleRTT(now monotime.Time) (expired bool) {
	rtt := b.rttStats.LatestRTT()
	if rtt == 0 {
		return false
	}
	expired = b.minRTT > 0 && now.Sub(b.minRTTAt) > minRTTAge
	if b.minRTT == 0 || rtt <= b.minRTT || expired {
		b.minRTT, b.minRTTAt = rtt, now
	}
	return expired
}

// advance changes the state: from Startup to Drain, to ProbeBW, and there from phase to phase.
func (b *bbr) advance(priorInFlight protocol.ByteCount, now monotime.Time) {
	switch {
	case b.state == startup && b.full:
		b.state, b.pacingGain = drain, drainGain
		b.tell(qlog.CongestionStateCongestionAvoidance)
	case b.state == drain && b.inFlight <= b.bdp(1):
		b.enterProbeBandwidth(now)
	case b.state == probeBandwidth:
		over := now.Sub(b.phaseAt) > b.minRTT
		switch {
		case b.pacingGain > 1:
			over = over && (b.roundLosses > 0 || priorInFlight >= b.bdp(b.pacingGain))
		case b.pacingGain < 1:
			over = over || priorInFlight <= b.bdp(1)
		}
		if over {
			b.enterPhase((b.phase+1)%len(cycle), now)
		}
	}
}

// enterProbeBandwidth begins with a phase with gain 1. The choice of this phase differs between connections.
func (b *bbr) enterProbeBandwidth(now monotime.Time) {
	b.state = probeBandwidth
	b.enterPhase(2+int(now)%(len(cycle)-2), now)
}

func (b *bbr) enterPhase(phase int, now monotime.Time) {
	b.phase, b.phaseAt, b.pacingGain = phase, now, cycle[phase]
}

// probe drains the queue for a short time when the smallest RTT is ten seconds old.
func (b *bbr) probe(expired bool, now monotime.Time) {
	if expired && b.state != probeRTT {
		b.state, b.pacingGain = probeRTT, 1
		b.before, b.probeEnd = b.window, 0
	}
	if b.state != probeRTT {
		return
	}
	b.limitedByApplication()
	switch {
	case b.probeEnd.IsZero():
		if b.inFlight <= b.probeWindow() {
			b.probeEnd, b.probeRound = now.Add(probeRTTTime), b.round
		}
	case now.After(b.probeEnd) && b.round > b.probeRound:
		b.minRTTAt = now
		b.window = max(b.window, b.before)
		if b.full {
			b.enterProbeBandwidth(now)
		} else {
			b.state, b.pacingGain = startup, startupGain
		}
	}
}

// grow sets the window. Its target is twice the BDP plus the bursts; the window grows by the acknowledged bytes until then.
func (b *bbr) grow(acked protocol.ByteCount) {
	target := b.bdp(windowGain)
	if target > 0 {
		target += bbrQuanta * b.pacer.maxBurstSize(b.rate())
	}
	if b.full {
		b.window = min(b.window+acked, target)
	} else if b.window < target || b.delivered < b.initial {
		b.window += acked
	}
	b.window = min(max(b.window, bbrMinimumPackets*b.datagram), protocol.MaxCongestionWindowPackets*b.datagram)
	if b.state == probeRTT {
		b.window = min(b.window, b.probeWindow())
	}
}

func (b *bbr) probeWindow() protocol.ByteCount {
	return max(b.bdp(probeRTTGain), bbrMinimumPackets*b.datagram)
}

// bdp is the bandwidth-delay product times gain; 0 while it isn't known.
func (b *bbr) bdp(gain float64) protocol.ByteCount {
	return protocol.ByteCount(gain * float64(b.bandwidth.largest()/BytesPerSecond) * b.minRTT.Seconds())
}

// rate is the pacing rate. Before the first sample it comes from the initial window.
func (b *bbr) rate() Bandwidth {
	found := float64(b.bandwidth.largest()) * rateMargin
	if found == 0 || !b.full {
		rtt := max(b.rttStats.SmoothedRTT(), protocol.TimerGranularity)
		found = max(found, float64(BandwidthFromDelta(b.initial, rtt)))
	}
	return Bandwidth(b.pacingGain * found)
}

func (b *bbr) OnCongestionEvent(number protocol.PacketNumber, lost, _ protocol.ByteCount) {
	b.connStats.PacketsLost.Add(1)
	b.connStats.BytesLost.Add(uint64(lost))
	b.lost(number)
	b.roundLosses++
	b.roundLost += lost
}

func (b *bbr) tell(state qlog.CongestionState) {
	if b.qlogger != nil {
		b.qlogger.RecordEvent(qlog.CongestionStateUpdated{State: state})
	}
}

func (b *bbr) TimeUntilSend(protocol.ByteCount) monotime.Time { return b.pacer.TimeUntilSend(b.rate()) }

func (b *bbr) HasPacingBudget(now monotime.Time) bool {
	return b.pacer.Budget(now, b.rate()) >= b.datagram
}

func (b *bbr) CanSend(inFlight protocol.ByteCount) bool { return inFlight < b.window }

func (b *bbr) SetMaxDatagramSize(size protocol.ByteCount) {
	b.datagram = size
	b.pacer.SetMaxDatagramSize(size)
}

func (b *bbr) GetCongestionWindow() protocol.ByteCount { return b.window }
func (b *bbr) InSlowStart() bool                       { return b.state == startup }
func (b *bbr) InRecovery() bool                        { return false }
func (b *bbr) MaybeExitSlowStart()                     {}
func (b *bbr) OnSpuriousLoss(protocol.PacketNumber)    {}
func (b *bbr) OnRetransmissionTimeout(bool)            {}
