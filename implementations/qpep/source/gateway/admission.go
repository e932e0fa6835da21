package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/quic-go/quic-go"
)

var errTooMany = errors.New("too many handshakes")

// Admission limits the handshakes of peers that are not yet authenticated. Under load, a peer must first prove its
// address with the token of a Retry (RFC 9000 §8.1.2), so that spoofed Initial packets leave no state. Safe for
// concurrent use.
type Admission struct {
	RetryFrom int // from this number of pending handshakes on, a peer without a token gets a Retry
	PerSource int // most pending handshakes of one source: an IPv4 address, or an IPv6 prefix of 64 bits
	All       int // most pending handshakes of all sources

	mutex   sync.Mutex
	pending int
	sources map[netip.Prefix]int
}

// ticket is the place of one pending handshake.
type ticket struct {
	leave func()
}

type ticketKey struct{}

// MustProve reports whether a peer without a token gets a Retry. It is used as quic.Transport.VerifySourceAddress.
func (a *Admission) MustProve(net.Addr) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.pending >= a.RetryFrom
}

// Admit counts a new handshake, or refuses it. It is used as quic.Transport.ConnContext. The place of the handshake is free again
// when the handshake fails, when the connection ends, or when Authenticated is called.
func (a *Admission) Admit(ctx context.Context, client *quic.ClientInfo) (context.Context, error) {
	from := source(client.RemoteAddr)
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.pending >= a.All || a.sources[from] >= a.PerSource || a.pending >= a.RetryFrom && !client.AddrVerified {
		return nil, errTooMany
	}
	if a.sources == nil {
		a.sources = map[netip.Prefix]int{}
	}
	a.pending++
	a.sources[from]++
	place := &ticket{leave: sync.OnceFunc(func() { a.leave(from) })}
	context.AfterFunc(ctx, place.leave)
	return context.WithValue(ctx, ticketKey{}, place), nil
}

// Authenticated frees the place of the connection with this context, because its peer is authenticated.
func Authenticated(ctx context.Context) {
	if place, ok := ctx.Value(ticketKey{}).(*ticket); ok {
		place.leave()
	}
}

// Pending is the number of running handshakes.
func (a *Admission) Pending() int {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.pending
}

func (a *Admission) leave(from netip.Prefix) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.pending--
	if a.sources[from]--; a.sources[from] == 0 {
		delete(a.sources, from)
	}
}

// source is the network that counts as one source.
func source(remote net.Addr) netip.Prefix {
	udp, ok := remote.(*net.UDPAddr)
	if !ok {
		return netip.Prefix{}
	}
	address := udp.AddrPort().Addr().Unmap()
	bits := 32
	if address.Is6() {
		bits = 64
	}
	prefix, _ := address.WithZone("").Prefix(bits) // fails only for lengths that don't exist in the family
	return prefix
}
