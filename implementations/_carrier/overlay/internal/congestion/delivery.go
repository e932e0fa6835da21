package congestion

import (
	"time"

	"github.com/quic-go/quic-go/internal/monotime"
	"github.com/quic-go/quic-go/internal/protocol"
)

// delivery measures the rate at which packets arrive at the other side (draft-cheng-iccrg-delivery-rate-estimation).
type delivery struct {
	packets        map[protocol.PacketNumber]departure
	inFlight       protocol.ByteCount
	delivered      protocol.ByteCount
	deliveredAt    monotime.Time
	firstSent      monotime.Time      // when the last acknowledged packet was sent
	appLimitedTill protocol.ByteCount // samples are limited by the application until delivered reaches this value; 0: they are not
}

// departure has the state at the time at which a packet was sent.
type departure struct {
	size        protocol.ByteCount
	at          monotime.Time
	firstSent   monotime.Time
	delivered   protocol.ByteCount
	deliveredAt monotime.Time
	appLimited  bool
}

// arrival is the sample of an acknowledged packet.
type arrival struct {
	rate       Bandwidth          // 0: no sample
	delivered  protocol.ByteCount // value of delivered when the packet was sent
	appLimited bool               // the sender had too little data, so the path may deliver faster
}

// sent records a sent packet. inFlight includes this packet.
func (d *delivery) sent(number protocol.PacketNumber, size, inFlight protocol.ByteCount, now monotime.Time) {
	if inFlight <= size { // no other packet is in flight: the intervals begin again
		d.firstSent, d.deliveredAt = now, now
	}
	d.inFlight = inFlight
	d.packets[number] = departure{
		size:        size,
		at:          now,
		firstSent:   d.firstSent,
		delivered:   d.delivered,
		deliveredAt: d.deliveredAt,
		appLimited:  d.appLimitedTill > 0,
	}
}

// acked returns false for an unknown packet. least is the smallest RTT: a sample over a shorter interval is not used, because its
// packets arrived in a burst.
func (d *delivery) acked(number protocol.PacketNumber, least time.Duration, now monotime.Time) (arrival, bool) {
	p, ok := d.packets[number]
	if !ok {
		return arrival{}, false
	}
	d.forget(number, p)
	d.delivered += p.size
	d.deliveredAt, d.firstSent = now, p.at
	if d.delivered > d.appLimitedTill {
		d.appLimitedTill = 0
	}
	found := arrival{delivered: p.delivered, appLimited: p.appLimited}
	if interval := max(p.at.Sub(p.firstSent), now.Sub(p.deliveredAt)); interval >= least && interval > 0 {
		found.rate = BandwidthFromDelta(d.delivered-p.delivered, interval)
	}
	return found, true
}

func (d *delivery) lost(number protocol.PacketNumber) {
	if p, ok := d.packets[number]; ok {
		d.forget(number, p)
	}
}

func (d *delivery) forget(number protocol.PacketNumber, p departure) {
	delete(d.packets, number)
	d.inFlight -= min(d.inFlight, p.size)
}

// limitedByApplication marks the packets that are sent from now on, until the packets in flight have arrived.
func (d *delivery) limitedByApplication() { d.appLimitedTill = max(d.delivered+d.inFlight, 1) }

// maxFilter has the largest rate of the last rounds with a rate.
type maxFilter struct {
	rates [bandwidthRounds]Bandwidth
	round int
}

func (f *maxFilter) add(rate Bandwidth, round int) {
	if round != f.round {
		f.round = round
		copy(f.rates[1:], f.rates[:])
		f.rates[0] = 0
	}
	f.rates[0] = max(f.rates[0], rate)
}

func (f *maxFilter) largest() Bandwidth {
	largest := Bandwidth(0)
	for _, rate := range f.rates {
		largest = max(largest, rate)
	}
	return largest
}
