package congestion

import (
	"time"

	"github.com/quic-go/quic-go/internal/monotime"
	"github.com/quic-go/quic-go/internal/protocol"
	"github.com/quic-go/quic-go/internal/utils"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter/jsontext"
)

// Constants of Careful Resume (RFC 9959).
const (
	jumpShare    = 2  // the window jumps to a half of the saved one (§3.3)
	retreatShare = 2  // of PipeSize: the window of Safe Retreat, and the slow start threshold after it (Beta 0.5; §3.5)
	rttShare     = 2  // an RTT of a half of the saved one, or less, belongs to another path (§3.2)
	mostRTTs     = 10 // an RTT above ten times the saved one belongs to another path (§4.2.1)
	leastWindows = 4  // initial windows; a smaller window isn't saved (§3.1)
)

// resumePhase has the names of draft-ietf-tsvwg-careful-resume-qlog, as have the triggers of its events.
type resumePhase string

const (
	reconnaissance resumePhase = "reconnaissance"
	unvalidated    resumePhase = "unvalidated"
	validating     resumePhase = "validating"
	safeRetreat    resumePhase = "safe_retreat"
	normal         resumePhase = "normal"
)

// carefulSender adds Careful Resume (RFC 9959) to NewReno and CUBIC: a connection jumps to a half of the window that an earlier
// connection on the same path had used, and retreats if a packet of the jump is lost. An RTT that ends slow start counts as
// congestion before the jump.
type carefulSender struct {
	*cubicSender
	path  *utils.Path
	phase resumePhase
	saved utils.Capacity

	inFlight    protocol.ByteCount // flight_size
	delivered   protocol.ByteCount
	filled      protocol.PacketNumber // last packet that left no room in the window
	pipe        protocol.ByteCount    // PipeSize: bytes in flight before the jump, and unvalidated bytes that have arrived
	jumpedAt    monotime.Time
	first, last protocol.PacketNumber // of the unvalidated packets

	// The round that is being observed. It ends when a packet arrives that was sent after its beginning.
	roundEnd   protocol.PacketNumber
	roundBegan monotime.Time
	roundBytes protocol.ByteCount
	roundFull  bool // the window limited the sender all the time
}

var _ SendAlgorithmWithDebugInfos = &carefulSender{}

func newCarefulSender(sender *cubicSender, path *utils.Path) *carefulSender {
	c := &carefulSender{cubicSender: sender, path: path, filled: protocol.InvalidPacketNumber, roundEnd: protocol.InvalidPacketNumber}
	c.enter(reconnaissance, "")
	return c
}

// rate is the pacing rate. In the Unvalidated Phase a window is sent in an RTT (§4.4), in slow start in half an RTT.
func (c *carefulSender) rate() Bandwidth {
	if c.phase == unvalidated {
		return c.BandwidthEstimate()
	}
	return c.pacingRate()
}

func (c *carefulSender) TimeUntilSend(protocol.ByteCount) monotime.Time {
	return c.pacer.TimeUntilSend(c.rate())
}

func (c *carefulSender) HasPacingBudget(now monotime.Time) bool {
	return c.pacer.Budget(now, c.rate()) >= c.maxDatagramSize
}

func (c *carefulSender) OnPacketSent(
	now monotime.Time, inFlight protocol.ByteCount, number protocol.PacketNumber, size protocol.ByteCount, ackEliciting bool,
) {
	c.inFlight = inFlight
	full := inFlight+c.maxDatagramSize > c.congestionWindow
	if c.phase != unvalidated {
		c.cubicSender.OnPacketSent(now, inFlight, number, size, ackEliciting)
		if full {
			c.filled = number
			c.confirmPath(number, now)
		}
		return
	}
	c.pacer.SentPacket(now, size, c.rate())
	if !ackEliciting {
		return
	}
	c.largestSentPacketNumber = number
	c.hybridSlowStart.OnPacketSent(number)
	switch {
	case full:
		c.endJump("last_unvalidated_packet_sent")
	case now.Sub(c.jumpedAt) > c.rttStats.SmoothedRTT():
		c.endJump("rtt_exceeded")
	}
}

func (c *carefulSender) OnPacketAcked(number protocol.PacketNumber, size, priorInFlight protocol.ByteCount, now monotime.Time) {
	c.inFlight -= min(c.inFlight, size)
	c.delivered += size
	full := c.isCwndLimited(priorInFlight)
	switch c.phase {
	case reconnaissance:
		c.cubicSender.OnPacketAcked(number, size, priorInFlight, now)
		c.confirmPath(number, now)
	case unvalidated:
		c.largestAckedPacketNumber = max(c.largestAckedPacketNumber, number)
		switch {
		case c.anotherPath():
			c.retreat("path_changed")
		case number >= c.first:
			c.pipe += size
			c.endJump("first_unvalidated_packet_acknowledged")
		case now.Sub(c.jumpedAt) > c.rttStats.SmoothedRTT():
			c.endJump("rtt_exceeded")
		}
	case validating:
		if number >= c.first {
			c.pipe += size
		}
		c.cubicSender.OnPacketAcked(number, size, priorInFlight, now)
		if number >= c.last {
			c.enter(normal, "last_unvalidated_packet_acknowledged")
		}
	case safeRetreat:
		c.largestAckedPacketNumber = max(c.largestAckedPacketNumber, number)
		if number >= c.first {
			c.pipe += size
		}
		if number >= c.last {
			c.endRetreat()
		}
	default:
		c.cubicSender.OnPacketAcked(number, size, priorInFlight, now)
		c.observe(number, size, full, now)
	}
}

func (c *carefulSender) OnCongestionEvent(number protocol.PacketNumber, lost, priorInFlight protocol.ByteCount) {
	c.inFlight -= min(c.inFlight, lost)
	trigger := "packet_loss"
	if lost == 0 {
		trigger = "ECN_CE"
	}
	switch c.phase {
	case reconnaissance:
		c.enter(normal, trigger)
	case unvalidated, validating:
		c.retreat(trigger) // the event below is then a part of this reaction
	}
	c.cubicSender.OnCongestionEvent(number, lost, priorInFlight)
}

// confirmPath leaves the Reconnaissance Phase when as much as the initial window has arrived (§3.2). While the application limits
// the sender, the phase goes on: a packet counts only if the window was full then or later.
func (c *carefulSender) confirmPath(number protocol.PacketNumber, now monotime.Time) {
	if c.phase != reconnaissance || c.delivered < c.initialCongestionWindow || number > c.filled {
		return
	}
	saved, ok := c.path.Saved(now)
	if !ok || !c.InSlowStart() {
		c.enter(normal, "")
		return
	}
	c.saved = saved
	jump := min(saved.Window/jumpShare, c.maxCongestionWindow())
	switch {
	case c.anotherPath():
		c.enter(normal, "rtt_not_validated")
	case jump <= c.congestionWindow || !c.path.Take():
		c.enter(normal, "")
	default:
		c.pipe = c.inFlight
		c.first = c.largestSentPacketNumber + 1
		c.jumpedAt = now
		c.setWindow(jump)
		c.enter(unvalidated, "congestion_window_limited")
	}
}

func (c *carefulSender) anotherPath() bool {
	rtt := c.rttStats.MinRTT()
	return rtt <= c.saved.RTT/rttShare || rtt > mostRTTs*c.saved.RTT
}

// endJump leaves the Unvalidated Phase: the window is what was used of it (§3.3).
func (c *carefulSender) endJump(trigger string) {
	c.last = c.largestSentPacketNumber
	if c.inFlight < c.initialCongestionWindow || c.inFlight <= c.pipe {
		c.setWindow(max(c.pipe, c.initialCongestionWindow))
		c.enter(normal, "rate_limited")
		return
	}
	c.setWindow(c.inFlight)
	c.enter(validating, trigger)
}

// retreat reacts to congestion after the jump (§3.5). There is no state to which NewReno could undo this reaction.
func (c *carefulSender) retreat(trigger string) {
	c.path.Forget()
	if c.phase == unvalidated {
		c.last = c.largestSentPacketNumber
	}
	c.setWindow(max(min(c.pipe/retreatShare, c.congestionWindow), c.minCongestionWindow()))
	c.slowStartThreshold = c.congestionWindow
	c.largestSentAtLastCutback = c.largestSentPacketNumber // packets of the Validating Phase don't grow the window later
	c.numAckedPackets = 0
	c.maybeQlogStateChange(qlog.CongestionStateRecovery)
	c.enter(safeRetreat, trigger)
}

// endRetreat sets the slow start threshold, and lets CUBIC take PipeSize for the window at which the path was full.
func (c *carefulSender) endRetreat() {
	c.slowStartThreshold = max(c.pipe/retreatShare, c.minCongestionWindow())
	c.cubic.CongestionWindowAfterPacketLoss(c.pipe)
	c.enter(normal, "exit_recovery")
}

// observe measures the bytes that arrive in an RTT (§3.1). A round with a queue lasts longer than the smallest RTT; only the share
// of that RTT counts, because a queue is no capacity.
func (c *carefulSender) observe(number protocol.PacketNumber, size protocol.ByteCount, full bool, now monotime.Time) {
	c.roundBytes += size
	c.roundFull = c.roundFull && full
	if number < c.roundEnd {
		return
	}
	rtt := c.rttStats.MinRTT()
	if took := now.Sub(c.roundBegan); c.roundEnd != protocol.InvalidPacketNumber && took >= rtt {
		window := protocol.ByteCount(float64(c.roundBytes) * float64(rtt) / float64(took))
		if window >= leastWindows*c.initialCongestionWindow {
			c.path.Observe(utils.Capacity{Window: window, RTT: rtt, At: now, Full: c.roundFull})
		}
	}
	c.roundEnd, c.roundBegan, c.roundBytes, c.roundFull = c.largestSentPacketNumber+1, now, 0, full
}

func (c *carefulSender) setWindow(window protocol.ByteCount) {
	c.congestionWindow = window
	c.connStats.CongestionWindow.Store(uint64(window))
}

func (c *carefulSender) enter(phase resumePhase, trigger string) {
	old := c.phase
	c.phase = phase
	if c.qlogger != nil {
		c.qlogger.RecordEvent(phaseUpdated{
			old: old, new: phase, trigger: trigger, saved: c.saved,
			pipe: c.pipe, window: c.congestionWindow, first: c.first, last: c.last,
		})
	}
}

// phaseUpdated is an event of draft-ietf-tsvwg-careful-resume-qlog.
type phaseUpdated struct {
	old, new     resumePhase
	trigger      string
	saved        utils.Capacity
	pipe, window protocol.ByteCount
	first, last  protocol.PacketNumber
}

func (phaseUpdated) Name() string { return "recovery:careful_resume_phase_updated" }

func (e phaseUpdated) Encode(enc *jsontext.Encoder, _ time.Time) error {
	tokens := []jsontext.Token{jsontext.BeginObject}
	if e.old != "" {
		tokens = append(tokens, jsontext.String("old"), jsontext.String(string(e.old)))
	}
	tokens = append(tokens, jsontext.String("new"), jsontext.String(string(e.new)),
		jsontext.String("state_data"), jsontext.BeginObject,
		jsontext.String("pipesize"), jsontext.Uint(uint64(e.pipe)),
		jsontext.String("first_unvalidated_packet"), jsontext.Uint(uint64(e.first)),
		jsontext.String("last_unvalidated_packet"), jsontext.Uint(uint64(e.last)),
		jsontext.String("congestion_window"), jsontext.Uint(uint64(e.window)),
		jsontext.EndObject)
	if e.saved.Window > 0 {
		tokens = append(tokens, jsontext.String("restored_data"), jsontext.BeginObject,
			jsontext.String("saved_congestion_window"), jsontext.Uint(uint64(e.saved.Window)),
			jsontext.String("saved_rtt"), jsontext.Float(e.saved.RTT.Seconds()*1000),
			jsontext.EndObject)
	}
	if e.trigger != "" {
		tokens = append(tokens, jsontext.String("trigger"), jsontext.String(e.trigger))
	}
	for _, token := range append(tokens, jsontext.EndObject) {
		if err := enc.WriteToken(token); err != nil {
			return err
		}
	}
	return nil
}
