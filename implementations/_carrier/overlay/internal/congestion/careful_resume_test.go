package congestion

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/quic-go/quic-go/internal/monotime"
	"github.com/quic-go/quic-go/internal/protocol"
	"github.com/quic-go/quic-go/internal/utils"
)

const (
	packet   = protocol.ByteCount(1200)
	initial  = 10 // packets
	lifetime = time.Hour
	rtt      = 600 * time.Millisecond
	savedIn  = 1000 // packets of the window that the earlier connection had
)

var server, client = &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443}, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 5000}

// connection is a sender whose packets arrive, or get lost, when the test says so.
type connection struct {
	*carefulSender
	t       *testing.T
	now     monotime.Time
	rtt     time.Duration
	next    protocol.PacketNumber
	flying  []protocol.PacketNumber
	largest protocol.ByteCount // window
}

func connect(t *testing.T, memory *utils.PathMemory, remote net.Addr, reno bool, now monotime.Time) *connection {
	stats := utils.NewRTTStats()
	stats.Tune(utils.Tuning{InitialWindow: initial, Cubic: !reno, SlowStart: utils.StandardSlowStart, Paths: memory}, server, remote)
	sender := NewSender(DefaultClock{}, stats, &utils.ConnectionStats{}, packet, reno, nil)
	return &connection{carefulSender: sender.(*carefulSender), t: t, now: now, rtt: rtt}
}

// send sends as much as the window allows, and at most so many packets.
func (c *connection) send(most int) (sent int) {
	for ; sent < most && c.CanSend(c.inBytes()); sent++ {
		c.flying = append(c.flying, c.next)
		c.OnPacketSent(c.now, c.inBytes(), c.next, packet, true)
		c.next++
	}
	return sent
}

func (c *connection) inBytes() protocol.ByteCount { return protocol.ByteCount(len(c.flying)) * packet }

// acknowledge has the oldest packets acknowledged by one ACK.
func (c *connection) acknowledge(packets int) {
	prior := c.inBytes()
	c.rttStats.UpdateRTT(c.rtt, 0)
	c.MaybeExitSlowStart()
	for _, number := range c.flying[:packets] {
		c.flying = c.flying[1:]
		c.OnPacketAcked(number, packet, prior, c.now)
	}
	c.largest = max(c.largest, c.congestionWindow)
}

func (c *connection) lose(packets int) {
	prior := c.inBytes()
	for _, number := range c.flying[:packets] {
		c.flying = c.flying[1:]
		c.OnCongestionEvent(number, packet, prior)
	}
}

// round sends a window and has it acknowledged an RTT later.
func (c *connection) round() {
	c.send(1 << 20)
	c.now = c.now.Add(c.rtt)
	c.acknowledge(len(c.flying))
}

func (c *connection) expect(phase resumePhase, window int) {
	c.t.Helper()
	if c.phase != phase || c.congestionWindow != protocol.ByteCount(window)*packet {
		c.t.Fatalf("%s with a window of %d bytes, want %s with %d packets of %d bytes", c.phase, c.congestionWindow, phase, window, packet)
	}
}

// remember is a memory with the capacity of an earlier connection between server and client, which was observed at time 1.
func remember(t *testing.T) *utils.PathMemory {
	t.Helper()
	memory := utils.NewPathMemory(lifetime)
	leave(memory, utils.Capacity{Window: savedIn * packet, RTT: rtt, At: 1})
	return memory
}

func leave(memory *utils.PathMemory, capacity utils.Capacity) {
	path := memory.Path(server, client)
	path.Observe(capacity)
	path.End()
}

func saved(memory *utils.PathMemory) int {
	capacity, _ := memory.Path(server, client).Saved(1)
	return int(capacity.Window / packet)
}

// both runs a test with NewReno and with CUBIC.
func both(t *testing.T, test func(t *testing.T, reno bool)) {
	for _, reno := range []bool{true, false} {
		t.Run(fmt.Sprintf("reno %t", reno), func(t *testing.T) { test(t, reno) })
	}
}

// jumped is a connection in the Unvalidated Phase. The initial window has arrived, `flying` more
// (18 at most) were in flight, and its window is 500.
func jumped(t *testing.T, memory *utils.PathMemory, reno bool, flying int) *connection {
	t.Helper()
	c := connect(t, memory, client, reno, 1)
	c.send(initial)
	c.now = c.now.Add(c.rtt)
	c.acknowledge(initial - 1)
	c.expect(reconnaissance, 2*initial-1)
	c.send(flying)
	c.acknowledge(1)
	c.expect(unvalidated, savedIn/2)
	return c
}

func TestJumpAfterTheInitialWindowHasArrived(t *testing.T) {
	both(t, func(t *testing.T, reno bool) {
		memory := remember(t)
		c := connect(t, memory, client, reno, 1)
		if sent := c.send(1000); sent != initial {
			t.Fatalf("%d packets are sent at first, want the initial window of %d", sent, initial)
		}
		c.now = c.now.Add(rtt)
		c.acknowledge(initial - 1)
		c.expect(reconnaissance, 2*initial-1)
		c.acknowledge(1)
		c.expect(unvalidated, savedIn/2)
		if saved(memory) != 0 {
			t.Error("another connection can use the same saved window")
		}
	})
}

// A sender that has little to send learns nothing from what arrives, so it waits.
func TestNoJumpWhileTheApplicationLimitsTheSender(t *testing.T) {
	c := connect(t, remember(t), client, true, 1)
	for range 10 {
		c.send(3)
		c.now = c.now.Add(rtt)
		c.acknowledge(3)
	}
	c.expect(reconnaissance, initial)
	c.send(initial - 1)
	c.expect(reconnaissance, initial)
	c.send(1)
	c.expect(unvalidated, savedIn/2)
}

func TestNoJump(t *testing.T) {
	other := &net.UDPAddr{IP: net.IPv4(192, 0, 2, 3), Port: 5000}
	for name, change := range map[string]func(*connection, *utils.PathMemory) *connection{
		"half the RTT":      func(c *connection, _ *utils.PathMemory) *connection { c.rtt = rtt / 2; return c },
		"more than ten RTT": func(c *connection, _ *utils.PathMemory) *connection { c.rtt = 10*rtt + 1; return c },
		"too old": func(c *connection, _ *utils.PathMemory) *connection {
			c.now = c.now.Add(lifetime - rtt + 1)
			return c
		},
		"another client": func(c *connection, m *utils.PathMemory) *connection { return connect(c.t, m, other, true, c.now) },
		"in use": func(c *connection, m *utils.PathMemory) *connection {
			m.Path(server, client).Take()
			return c
		},
		"window not larger": func(c *connection, m *utils.PathMemory) *connection {
			m.Path(server, client).Take()
			leave(m, utils.Capacity{Window: 4 * initial * packet, RTT: rtt, At: 1})
			return c
		},
		"slow start has ended": func(c *connection, _ *utils.PathMemory) *connection {
			c.slowStartThreshold = initial * packet
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			memory := remember(t)
			c := change(connect(t, memory, client, true, 1), memory)
			c.round()
			if c.phase != normal || c.congestionWindow > 2*initial*packet {
				t.Errorf("%s with a window of %d bytes, want normal with at most twice the initial window", c.phase, c.congestionWindow)
			}
		})
	}
}

func TestJumpAtTheLimitsOfRTTAndAge(t *testing.T) {
	for name, change := range map[string]func(*connection){
		"shortest RTT": func(c *connection) { c.rtt = rtt/2 + 1 },
		"longest RTT":  func(c *connection) { c.rtt = 10 * rtt },
		"oldest":       func(c *connection) { c.now = c.now.Add(lifetime - rtt) },
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, remember(t), client, true, 1)
			change(c)
			c.round()
			c.expect(unvalidated, savedIn/2)
		})
	}
}

func TestAnotherPortIsTheSamePath(t *testing.T) {
	c := connect(t, remember(t), &net.UDPAddr{IP: client.IP, Port: client.Port + 1}, true, 1)
	c.round()
	c.expect(unvalidated, savedIn/2)
}

func TestCongestionBeforeTheJump(t *testing.T) {
	both(t, func(t *testing.T, reno bool) {
		memory := remember(t)
		c, plain := connect(t, memory, client, reno, 1), connect(t, utils.NewPathMemory(lifetime), client, reno, 1)
		for _, c := range []*connection{c, plain} {
			c.send(initial)
			c.lose(1)
			c.now = c.now.Add(rtt)
			c.acknowledge(initial - 1)
			for range 3 {
				c.round()
			}
		}
		if c.phase != normal || c.congestionWindow != plain.congestionWindow || saved(memory) != savedIn {
			t.Errorf("%s with a window of %d bytes, want normal with the window without memory, %d", c.phase, c.congestionWindow, plain.congestionWindow)
		}
	})
}

// Half of the window is sent in half an RTT, after a burst that NewReno also has.
func TestTheJumpIsPaced(t *testing.T) {
	both(t, func(t *testing.T, reno bool) {
		c := jumped(t, remember(t), reno, 0)
		end, sent := c.now.Add(rtt/2), 0
		for c.now.Before(end) {
			for c.HasPacingBudget(c.now) && c.send(1) == 1 {
				sent++
			}
			c.now = max(c.TimeUntilSend(0), c.now.Add(time.Microsecond))
		}
		if want := savedIn / 4; sent < want-maxBurstSizePackets || sent > want+maxBurstSizePackets {
			t.Errorf("%d packets in half an RTT, want %d, or %d more or less", sent, want, maxBurstSizePackets)
		}
	})
}

func TestJumpThatArrives(t *testing.T) {
	both(t, func(t *testing.T, reno bool) {
		memory := remember(t)
		c := jumped(t, memory, reno, 18)
		c.send(1000)
		c.expect(validating, savedIn/2)
		c.now = c.now.Add(rtt)
		c.acknowledge(savedIn/2 - 1)
		c.expect(validating, savedIn-1)
		c.acknowledge(1)
		c.expect(normal, savedIn-1)
		if !c.InSlowStart() {
			t.Error("slow start has ended")
		}
		c.path.End()
		if saved(memory) != savedIn {
			t.Errorf("%d packets are saved for the next connection, want %d", saved(memory), savedIn)
		}
	})
}

// Packets that were in flight before the jump don't grow the window, and do not count twice.
func TestOlderPacketsDoNotGrowTheWindow(t *testing.T) {
	c := jumped(t, remember(t), true, 18)
	c.send(100)
	c.acknowledge(18)
	c.expect(unvalidated, savedIn/2)
	if c.pipe != 18*packet {
		t.Errorf("PipeSize is %d bytes, want 18 packets", c.pipe)
	}
	c.acknowledge(1)
	c.expect(validating, 99)
	if c.pipe != 19*packet {
		t.Errorf("PipeSize is %d bytes, want 19 packets", c.pipe)
	}
}

func TestJumpLastsAnRTT(t *testing.T) {
	for name, step := range map[string]func(*connection){
		"ACK":    func(c *connection) { c.acknowledge(1) },
		"packet": func(c *connection) { c.send(1) },
	} {
		t.Run(name, func(t *testing.T) {
			c := jumped(t, remember(t), true, 18)
			c.send(100)
			c.now = c.now.Add(rtt)
			step(c)
			if c.phase != unvalidated {
				t.Fatalf("%s after an RTT", c.phase)
			}
			c.now = c.now.Add(1)
			step(c)
			if c.phase != validating || c.congestionWindow != c.inBytes() {
				t.Errorf("%s with a window of %d bytes, want validating with the %d that are in flight", c.phase, c.congestionWindow, c.inBytes())
			}
		})
	}
}

func TestJumpThatIsNotUsed(t *testing.T) {
	for name, test := range map[string]struct{ flying, sent, window int }{
		"below the initial window": {0, 5, initial},
		"below PipeSize":           {18, 15, 19},
	} {
		t.Run(name, func(t *testing.T) {
			memory := remember(t)
			c := jumped(t, memory, true, test.flying)
			c.send(test.sent)
			c.now = c.now.Add(rtt)
			c.acknowledge(test.flying + 1)
			c.expect(normal, test.window)
			c.path.End()
			if saved(memory) != savedIn {
				t.Error("the next connection can't jump")
			}
		})
	}
}

func TestAnotherPathAfterTheJump(t *testing.T) {
	memory := remember(t)
	c := jumped(t, memory, true, 18)
	c.send(100)
	c.rtt = rtt / 2
	c.acknowledge(1)
	c.expect(safeRetreat, 18/2)
	c.path.End()
	if saved(memory) != 0 {
		t.Error("the next connection can jump")
	}
}

func TestSafeRetreat(t *testing.T) {
	for name, start := range map[string]func(*connection){
		"from Unvalidated":      func(c *connection) { c.send(480); c.lose(1) },
		"from Validating":       func(c *connection) { c.send(1000); c.lose(1) },
		"from Unvalidated, ECN": func(c *connection) { c.send(480); c.OnCongestionEvent(c.next-1, 0, c.inBytes()) },
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, reno bool) {
				memory := remember(t)
				c := jumped(t, memory, reno, 18)
				start(c)
				c.expect(safeRetreat, 9) // half of the 18 packets that were in flight before the jump
				lost := c.flying[0] - 1
				c.acknowledge(len(c.flying) - 100)
				c.lose(50)
				c.expect(safeRetreat, 9)
				if sent := c.send(1000); sent != 0 {
					t.Fatalf("%d packets are sent while the path is full", sent)
				}
				c.acknowledge(49)
				c.expect(safeRetreat, 9)
				arrived := c.pipe
				c.acknowledge(1)
				c.expect(normal, 9)
				if arrived < 400*packet || arrived > 460*packet || c.slowStartThreshold != (arrived+packet)/2 {
					t.Errorf("PipeSize %d, slow start threshold %d bytes, want a half", arrived, c.slowStartThreshold)
				}
				c.OnSpuriousLoss(lost)
				c.expect(normal, 9)
				c.path.End()
				if saved(memory) != 0 {
					t.Error("the next connection can jump")
				}
				for range 8 {
					c.send(1 << 20)
					c.now = c.now.Add(rtt)
					for left := len(c.flying); left > 0; left -= initial { // as many packets an ACK
						c.acknowledge(min(left, initial))
						c.send(1 << 20)
					}
				}
				least := c.slowStartThreshold
				if !reno {
					least += 50 * packet // CUBIC is on its way to the window at which the path was full
				}
				if c.InSlowStart() || c.congestionWindow < least || c.congestionWindow > arrived+initial*packet {
					t.Errorf("a window of %d bytes, want one between %d and little more than PipeSize %d", c.congestionWindow, least, arrived)
				}
			})
		})
	}
}

// Packets that were sent after the jump count neither for PipeSize nor, after the phase, for the window.
func TestSafeRetreatEndsWithTheLastPacketOfTheJump(t *testing.T) {
	both(t, func(t *testing.T, reno bool) {
		c := jumped(t, remember(t), reno, 18)
		c.send(1000)
		c.acknowledge(118)
		later := c.send(1000)
		c.lose(1)
		c.expect(safeRetreat, (18+100)/2)
		c.acknowledge(len(c.flying) - later - 1)
		c.expect(safeRetreat, (18+100)/2)
		c.acknowledge(1)
		c.expect(normal, (18+100)/2)
		c.acknowledge(later)
		c.expect(normal, (18+100)/2)
		if want := protocol.ByteCount(savedIn/2-1) * packet / 2; later < 100 || c.slowStartThreshold != want {
			t.Errorf("slow start threshold %d bytes after %d later packets, want half of what has arrived of the jump, %d", c.slowStartThreshold, later, want)
		}
	})
}

// PipeSize counts 34 of the unvalidated packets, as in the example of RFC 9959, appendix B.4.
func TestLossInValidating(t *testing.T) {
	c := jumped(t, remember(t), true, 18)
	c.send(1000)
	c.acknowledge(18 + 34)
	c.lose(1)
	c.expect(safeRetreat, (18+34)/2)
}

func TestWhatIsObserved(t *testing.T) {
	quiet := func(c *connection) { // the application sends less than the window
		c.send(60)
		c.now = c.now.Add(rtt)
		c.acknowledge(60)
	}
	for name, test := range map[string]struct {
		then        func(*connection)
		least, most int
	}{
		"slow start": {func(*connection) {}, 320, 640},
		"a quiet application": {func(c *connection) {
			for range 3 {
				quiet(c)
			}
		}, 320, 640},
		"a burst after it": {func(c *connection) {
			quiet(c)
			c.send(1 << 20)
			c.now = c.now.Add(rtt)
			c.acknowledge(1)
		}, 320, 640},
		"a slower path": {func(c *connection) {
			c.congestionWindow, c.slowStartThreshold = 100*packet, 100*packet
			for range 3 {
				c.round()
			}
		}, 99, 105},
	} {
		t.Run(name, func(t *testing.T) {
			memory := utils.NewPathMemory(lifetime)
			c := connect(t, memory, client, true, 1)
			for range 7 { // windows of 10, 20, …, 640 packets
				c.round()
			}
			test.then(c)
			c.path.End()
			if saved(memory) < test.least || saved(memory) > test.most {
				t.Errorf("%d packets are saved, want %d to %d, those of an RTT", saved(memory), test.least, test.most)
			}
		})
	}
}

func TestAQueueIsNotObserved(t *testing.T) {
	memory := utils.NewPathMemory(lifetime)
	c := connect(t, memory, client, true, 1)
	for range 5 {
		c.round()
	}
	c.slowStartThreshold = c.congestionWindow
	window := int(c.congestionWindow / packet)
	c.rtt = 2 * rtt
	for range 3 {
		c.round()
	}
	c.path.End()
	if saved(memory) < window/2-2 || saved(memory) > window/2+5 {
		t.Errorf("%d packets are saved, want half of the window of %d, because the other half is in the queue", saved(memory), window)
	}
}

func TestASmallWindowIsNotSaved(t *testing.T) {
	memory := utils.NewPathMemory(lifetime)
	c := connect(t, memory, client, true, 1)
	c.slowStartThreshold = 2 * initial * packet
	for range 5 {
		c.round()
	}
	c.path.End()
	if saved(memory) != 0 {
		t.Errorf("%d packets are saved", saved(memory))
	}
}

// A short transfer doesn't hide what a longer one has found; a sender whose window has become smaller does.
func TestSmallerCapacities(t *testing.T) {
	for name, test := range map[string]struct {
		found utils.Capacity
		saved int
	}{
		"application-limited":        {utils.Capacity{Window: 500 * packet, RTT: rtt, At: 2}, savedIn},
		"limited by the window":      {utils.Capacity{Window: 500 * packet, RTT: rtt, At: 2, Full: true}, 500},
		"after the other's lifetime": {utils.Capacity{Window: 500 * packet, RTT: rtt, At: monotime.Time(1).Add(lifetime + 1)}, 500},
	} {
		t.Run(name, func(t *testing.T) {
			memory := remember(t)
			leave(memory, test.found)
			if saved(memory) != test.saved {
				t.Errorf("%d packets are saved, want %d", saved(memory), test.saved)
			}
		})
	}
}

// After ten thousand paths the oldest one is forgotten.
func TestTheMemoryIsLimited(t *testing.T) {
	memory := remember(t)
	for i := range 10_000 {
		path := memory.Path(server, &net.UDPAddr{IP: net.IPv4(10, 0, byte(i>>8), byte(i))})
		path.Observe(utils.Capacity{Window: packet, RTT: rtt, At: monotime.Time(i + 2)})
		path.End()
	}
	first := memory.Path(server, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 0)})
	if _, ok := first.Saved(2); saved(memory) != 0 || !ok {
		t.Errorf("%d packets of the oldest path are saved; the path after it is saved: %v", saved(memory), ok)
	}
}

func TestAConnectionThatHasMigratedIsForgotten(t *testing.T) {
	stats := utils.NewRTTStats()
	stats.Tune(utils.Tuning{Paths: remember(t)}, server, client)
	stats.ResetForPathMigration()
	if sender, careful := NewSender(DefaultClock{}, stats, &utils.ConnectionStats{}, packet, true, nil).(*carefulSender); careful {
		t.Errorf("%+v uses the memory of another path", sender)
	}
}
