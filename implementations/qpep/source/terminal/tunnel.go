package terminal

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

// Waits between attempts to reach the gateway. The wait doubles after each failure, and is reduced at random by up to a half.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 15 * time.Second
	// After a connection that lived at least this long, the next attempt comes at once, and the waits begin again.
	goodLife = 5 * time.Second
)

// errEnded is the error for a stream that is requested after Run has returned.
var errEnded = errors.New("the terminal ends")

// Tunnel is the long-lived QUIC connection to the gateway. It is opened again each time it has died.
type Tunnel struct {
	dial func(context.Context) (*quic.Conn, error)

	mutex   sync.Mutex
	current *quic.Conn
	changed chan struct{} // closed when current is set, or the tunnel has ended
	ended   bool
}

// NewTunnel makes a tunnel. Run opens its connections with dial.
func NewTunnel(dial func(context.Context) (*quic.Conn, error)) *Tunnel {
	return &Tunnel{dial: dial, changed: make(chan struct{})}
}

// Run keeps the tunnel up until ctx ends, then closes it.
func (t *Tunnel) Run(ctx context.Context) {
	defer t.end()
	wait := firstWait
	for {
		connection, err := t.dial(ctx)
		if err == nil {
			slog.Info("tunnel is up", "gateway", connection.RemoteAddr().String())
			up := time.Now()
			t.set(connection)
			select {
			case <-connection.Context().Done():
			case <-ctx.Done():
				_ = connection.CloseWithError(0, "terminal ends")
			}
			t.set(nil)
			err = context.Cause(connection.Context())
			if time.Since(up) >= goodLife {
				wait = firstWait
			}
		}
		if ctx.Err() != nil {
			return
		}
		pause := wait/2 + rand.N(wait/2)
		slog.Warn("tunnel is down", "reason", err, "again in", pause.Round(time.Millisecond))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		wait = min(2*wait, lastWait)
	}
}

func (t *Tunnel) set(connection *quic.Conn) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.current = connection
	if connection == nil {
		t.changed = make(chan struct{})
	} else {
		close(t.changed)
	}
}

func (t *Tunnel) end() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.ended = true
	close(t.changed)
}

// Wait returns the connection as soon as the tunnel is up, or ctx's error.
func (t *Tunnel) Wait(ctx context.Context) (*quic.Conn, error) {
	for {
		t.mutex.Lock()
		connection, changed, ended := t.current, t.changed, t.ended
		t.mutex.Unlock()
		switch {
		case ended:
			return nil, errEnded
		case connection != nil && connection.Context().Err() == nil:
			return connection, nil
		case connection != nil:
			// The connection has died, and Run will notice it soon. This closes no channel.
			changed = nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-afterDeath(connection):
		}
	}
}

// afterDeath is a short pause in which Run can remove a dead connection; nil when there is no dead connection.
func afterDeath(connection *quic.Conn) <-chan time.Time {
	if connection == nil {
		return nil
	}
	return time.After(time.Millisecond)
}

// Stream opens a stream in the tunnel. It waits until the tunnel is up and the gateway allows a further stream.
func (t *Tunnel) Stream(ctx context.Context) (*quic.Conn, *quic.Stream, error) {
	for {
		connection, err := t.Wait(ctx)
		if err != nil {
			return nil, nil, err
		}
		stream, err := connection.OpenStreamSync(ctx)
		if err == nil {
			return connection, stream, nil
		}
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		if errors.Is(err, quic.Err0RTTRejected) {
			// The gateway has refused 0-RTT. After the handshake the connection works, but earlier streams are lost.
			_, err = connection.NextConnection(ctx)
		}
		if err != nil && connection.Context().Err() == nil {
			return nil, nil, err
		}
	}
}
