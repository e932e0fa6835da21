//go:build tuned

package carrier

import (
	"strings"
	"testing"
	"time"
)

// These read from qlogs whether what quic-go is told is what it does.

func TestPacketsPerAck(t *testing.T) {
	for _, ratio := range []int{1, 2, 10, 30} {
		options := sane()
		options.AckRatio, options.MaxAckDelay, options.PacketSize = ratio, 200*time.Millisecond, 1200
		client, _ := transfer(t, options, 300, 1000, time.Millisecond)
		packets, acks := count(client, "packet_received", "stream"), count(client, "packet_sent", "ack")
		found := float64(packets) / float64(acks)
		// The end, and packets that ride together, make it some more or less.
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
	if delay != 61 { // quic-go adds its timer's granularity
		t.Errorf("max_ack_delay %d ms in the transport parameters, want 61", delay)
	}
}
