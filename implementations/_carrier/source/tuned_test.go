//go:build tuned

package carrier

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

// These tests read from qlogs whether quic-go applies the options.

func TestPacketsPerAck(t *testing.T) {
	for _, ratio := range []int{1, 2, 10, 30} {
		options := sane()
		options.AckRatio, options.MaxAckDelay, options.PacketSize = ratio, 200*time.Millisecond, 1200
		client, _ := transfer(t, options, 300, 1000, time.Millisecond)
		packets, acks := count(client, "packet_received", "stream"), count(client, "packet_sent", "ack")
		found := float64(packets) / float64(acks)
		// The last packets, and packets that arrive together, change the ratio a little.
		if found > float64(ratio)*1.3 || found < float64(ratio)*0.7 {
			t.Errorf("%d packets and %d ACKs: %.1f packets per ACK, want %d", packets, acks, found, ratio)
		}
	}
}

func TestInitialWindowAndMaxAckDelay(t *testing.T) {
	options := sane()
	options.IW, options.MaxAckDelay, options.PacketSize = 7, 60*time.Millisecond, 1200
	client, server := transfer(t, options, 1, 10_000, 0)
	window, delay := 0, 0
	for _, e := range server {
		window = max(window, e.Data.Window)
	}
	for _, e := range client {
		if strings.HasSuffix(e.Name, "parameters_set") && e.Data.Initiator == "remote" {
			delay = max(delay, e.Data.MaxAckDelay)
		}
	}
	if window != 7*1200 {
		t.Errorf("initial window %d bytes, want 7 packets of 1200", window)
	}
	if delay != 61 { // quic-go adds the granularity of its timer
		t.Errorf("max_ack_delay %d ms in the transport parameters, want 61", delay)
	}
}

// gap is a socket that loses the datagram with that number.
type gap struct {
	net.PacketConn
	number int64
	sent   atomic.Int64
}

func (g *gap) WriteTo(data []byte, to net.Addr) (int, error) {
	if g.sent.Add(1) == g.number {
		return len(data), nil
	}
	return g.PacketConn.WriteTo(data, to)
}

func TestALossCostsOneFlowItsShare(t *testing.T) {
	for flows, kept := range map[int]float64{1: 0.7, 8: (7 + 0.7) / 8} {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		options := sane()
		options.CCA, options.Flows = "cubic", flows
		_, server := transferOver(t, &gap{PacketConn: conn, number: 300}, options, 100, 10_000, 0)
		_ = conn.Close()
		before, least := 0, 1.0
		for _, e := range server {
			if now := e.Data.Now; now > 0 {
				if before > 0 {
					least = min(least, float64(now)/float64(before))
				}
				before = now
			}
		}
		if least < kept-0.02 || least > kept+0.02 {
			t.Errorf("%d flows: a loss left %.3f of the congestion window, want %.3f", flows, least, kept)
		}
	}
}

// link is a socket whose datagrams arrive in order after delay(time since the first), and at most one per `gap`; every
// `lossy`th doesn't, unless that is 0.
type link struct {
	net.PacketConn
	delay func(time.Duration) time.Duration
	gap   time.Duration
	lossy int
	sent  int
	queue chan parcel
	first time.Time
	last  time.Time
}

type parcel struct {
	data []byte
	to   net.Addr
	due  time.Time
}

func newLink(t *testing.T, gap time.Duration, delay func(time.Duration) time.Duration) *link {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{PacketConn: conn, delay: delay, gap: gap, queue: make(chan parcel, 100_000)}
	go func() {
		for p := range l.queue {
			time.Sleep(time.Until(p.due))
			_, _ = conn.WriteTo(p.data, p.to)
		}
	}()
	t.Cleanup(func() { close(l.queue); _ = conn.Close() })
	return l
}

// WriteTo is called by one goroutine, quic-go's sender.
func (l *link) WriteTo(data []byte, to net.Addr) (int, error) {
	now := time.Now()
	if l.first.IsZero() {
		l.first = now
	}
	l.last = later(now, l.last.Add(l.gap))
	if l.sent++; l.lossy > 0 && l.sent%l.lossy == 0 {
		return len(data), nil
	}
	l.queue <- parcel{append([]byte(nil), data...), to, l.last.Add(l.delay(now.Sub(l.first)))}
	return len(data), nil
}

func later(one, other time.Time) time.Time {
	if one.After(other) {
		return one
	}
	return other
}

// largest is the largest congestion window of a download of 6 MB, in bytes.
func largest(t *testing.T, slowStart string, gap time.Duration, delay func(time.Duration) time.Duration) (window int) {
	t.Helper()
	options := sane()
	options.SlowStart, options.PacketSize, options.StreamWindow = slowStart, 1200, 16<<20
	_, server := transferOver(t, newLink(t, gap, delay), options, 600, 10_000, 0)
	for _, e := range server {
		window = max(window, e.Data.Now)
	}
	return window
}

// The RTT is 60 ms. Once it is 100 ms, for one round and the time until that round begins.
func TestHyStartPlusPlusGoesOnBehindABurst(t *testing.T) {
	burst := func(since time.Duration) time.Duration {
		if since > 150*time.Millisecond && since < 320*time.Millisecond {
			return 100 * time.Millisecond
		}
		return 60 * time.Millisecond
	}
	own, plus := largest(t, "hystart", 0, burst), largest(t, "hystartpp", 0, burst)
	if plus < 2*own {
		t.Errorf("windows reach %d bytes with hystart, %d with hystartpp, want at least twice that", own, plus)
	}
}

// A link of 24 Mbit/s with an unlimited queue: its RTT rises in every round from the fourth on.
func TestHyStartPlusPlusEndsBeforeAQueueIsLong(t *testing.T) {
	steady := func(time.Duration) time.Duration { return 60 * time.Millisecond }
	gap := 400 * time.Microsecond
	standard, plus := largest(t, "standard", gap, steady), largest(t, "hystartpp", gap, steady)
	if standard < plus+plus/2 {
		t.Errorf("windows reach %d bytes with standard slow start, want 1.5 times the %d with hystartpp", standard, plus)
	}
}

// Downloads over a link with an RTT of 60 ms, one after the other, with one memory of the server.
func TestTheSecondConnectionOfAClientResumesCarefully(t *testing.T) {
	options := sane()
	options.CCA, options.SlowStart, options.PacketSize, options.StreamWindow = "cubic", "standard", 1200, 16<<20
	options.CarefulResume, options.Lifetime = "on", time.Minute
	path := newLink(t, 0, func(time.Duration) time.Duration { return 60 * time.Millisecond })
	listener, _, logs, folder := listen(t, path, options)
	defer listener.Close()
	for _, client := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.1"} {
		go func() {
			if connection, err := listener.Accept(t.Context()); err == nil {
				if stream, err := connection.OpenUniStream(); err == nil {
					_, _ = stream.Write(make([]byte, 3_000_000))
					_ = stream.Close()
				}
			}
		}()
		socket, err := net.ListenPacket("udp", client+":0")
		if err != nil {
			t.Fatal(err)
		}
		connection, err := quic.Dial(t.Context(), socket, listener.Addr(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"test"}}, &quic.Config{
			InitialStreamReceiveWindow: options.StreamWindow, InitialConnectionReceiveWindow: options.StreamWindow,
		})
		if err != nil {
			t.Fatal(err)
		}
		stream, err := connection.AcceptUniStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, stream); err != nil {
			t.Fatal(err)
		}
		_ = connection.CloseWithError(0, "")
		_ = socket.Close()
	}
	_ = listener.Close()
	logs.Close()
	names, _ := filepath.Glob(filepath.Join(folder, "*_server.sqlog"))
	var jumped, all int
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all++
		if strings.Contains(string(text), `"new":"unvalidated"`) {
			jumped++
			if !strings.Contains(string(text), `"old":"unvalidated","new":"validating"`) {
				t.Errorf("%s: the jump was not used", name)
			}
		}
	}
	if all != 3 || jumped != 1 {
		t.Errorf("%d of %d connections resumed, want 1 of 3: the second one of the same address", jumped, all)
	}
}
