package utils

import (
	"net"
	"sync"
	"time"

	"github.com/quic-go/quic-go/internal/monotime"
	"github.com/quic-go/quic-go/internal/protocol"
)

// maxPaths limits the memory that clients can use.
const maxPaths = 10_000

// Capacity is a set of congestion control parameters that a connection leaves for the next one (RFC 9959 §3.1).
type Capacity struct {
	Window protocol.ByteCount // saved_cwnd: bytes that were acknowledged in an RTT
	RTT    time.Duration      // saved_rtt: the smallest RTT
	At     monotime.Time      // time of the observation
	Full   bool               // the congestion window limited the sender, so that the path was not known to carry more
}

// PathMemory has the last capacity of each path, for as long as its lifetime. A path is a pair of addresses, without ports.
type PathMemory struct {
	lifetime time.Duration
	mutex    sync.Mutex
	paths    map[pathKey]Capacity
}

type pathKey struct{ local, remote string }

// NewPathMemory makes a memory without paths.
func NewPathMemory(lifetime time.Duration) *PathMemory {
	return &PathMemory{lifetime: lifetime, paths: make(map[pathKey]Capacity)}
}

// Path is the access of one connection to its path's capacity. It returns nil without a memory.
func (m *PathMemory) Path(local, remote net.Addr) *Path {
	if m == nil {
		return nil
	}
	return &Path{memory: m, key: pathKey{host(local), host(remote)}}
}

func host(address net.Addr) string {
	if udp, ok := address.(*net.UDPAddr); ok {
		return udp.IP.String()
	}
	return address.String()
}

// keep replaces the capacity of a path, unless the path is known to carry more.
func (m *PathMemory) keep(key pathKey, found Capacity) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if kept, ok := m.paths[key]; ok && !found.Full && kept.Window > found.Window && found.At.Sub(kept.At) <= m.lifetime {
		return
	}
	if _, ok := m.paths[key]; !ok && len(m.paths) >= maxPaths {
		m.forgetOldest()
	}
	m.paths[key] = found
}

func (m *PathMemory) forgetOldest() {
	var oldest pathKey
	var since monotime.Time
	for key, c := range m.paths {
		if since.IsZero() || c.At.Before(since) {
			oldest, since = key, c.At
		}
	}
	delete(m.paths, oldest)
}

// Path belongs to one connection, and is used by its goroutine only.
type Path struct {
	memory *PathMemory
	key    pathKey
	own    Capacity // taken from the memory, or observed later; zero: none
}

// Saved returns the capacity that an earlier connection saved. It removes a capacity whose lifetime is over.
func (p *Path) Saved(now monotime.Time) (Capacity, bool) {
	p.memory.mutex.Lock()
	defer p.memory.mutex.Unlock()
	c, ok := p.memory.paths[p.key]
	if ok && now.Sub(c.At) > p.memory.lifetime {
		delete(p.memory.paths, p.key)
		ok = false
	}
	return c, ok
}

// Take removes the capacity, because only one connection may use it at a time. It returns false if another connection was faster.
func (p *Path) Take() bool {
	p.memory.mutex.Lock()
	defer p.memory.mutex.Unlock()
	c, ok := p.memory.paths[p.key]
	if ok {
		delete(p.memory.paths, p.key)
		p.own = c
	}
	return ok
}

// Forget removes a capacity that was taken and turned out to be wrong.
func (p *Path) Forget() { p.own = Capacity{} }

// Observe uses an observation of this connection. A smaller capacity counts only if the congestion window limited the sender.
func (p *Path) Observe(found Capacity) {
	if found.Full || found.Window > p.own.Window {
		p.own = found
	}
}

// End saves the capacity when the connection ends.
func (p *Path) End() {
	if p != nil && p.own.Window > 0 {
		p.memory.keep(p.key, p.own)
	}
}
