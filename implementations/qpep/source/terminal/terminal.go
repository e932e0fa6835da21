// Package terminal is QPEP's side on the customer's LAN: it accepts TCP connections in the name of their destinations, at
// once, and carries each in a stream of the tunnel to the gateway (NDSS 2021 paper, section V-A).
package terminal

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"bentpipe/qpep/header"
	"bentpipe/qpep/relay"
)

// Terminal serves TCP clients.
type Terminal struct {
	Tunnel *Tunnel
	// Destination of a connection that was accepted; the error resets the connection.
	Destination func(*net.TCPConn) (netip.AddrPort, error)
	// StreamTimeout is how long an accepted connection waits for the tunnel before it is reset.
	StreamTimeout time.Duration
	Counters      Counters
}

// Counters are of the terminal's life so far.
type Counters struct {
	Open, Total, Broken atomic.Int64
}

// Serve takes connections from listener until ctx ends, and returns when all of them have ended.
func (t *Terminal) Serve(ctx context.Context, listener *net.TCPListener) error {
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		client, err := listener.AcceptTCP()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if !isPassing(err) {
				return err
			}
			slog.Warn("a connection could not be accepted", "reason", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		clients.Go(func() { t.serveClient(ctx, client) })
	}
}

// isPassing says whether accept(2) may work again: descriptors or memory ran out, or the client went before it was served.
func isPassing(err error) bool {
	return !errors.Is(err, net.ErrClosed)
}

func (t *Terminal) serveClient(ctx context.Context, client *net.TCPConn) {
	t.Counters.Total.Add(1)
	t.Counters.Open.Add(1)
	defer t.Counters.Open.Add(-1)
	log := slog.With("client", client.RemoteAddr().String())
	destination, err := t.Destination(client)
	if err != nil {
		t.broken(log, client, err)
		return
	}
	log = log.With("destination", destination)
	wait, cancel := context.WithTimeout(ctx, t.StreamTimeout)
	connection, stream, err := t.Tunnel.Stream(wait)
	cancel()
	if err != nil {
		t.broken(log, client, err)
		return
	}
	// The header goes out without waiting for payload: a server that speaks first is not kept waiting.
	h := header.New(client.RemoteAddr().(*net.TCPAddr).AddrPort(), destination)
	if _, err := stream.Write(h.Append(nil)); err != nil {
		relay.Abort(client, stream, relay.Reset)
		log.Warn("no stream", "reason", err)
		return
	}
	if err := relay.Join(connection.Context(), client, stream); err != nil {
		t.Counters.Broken.Add(1)
		log.Debug("broken", "reason", err)
	}
}

func (t *Terminal) broken(log *slog.Logger, client *net.TCPConn, reason error) {
	t.Counters.Broken.Add(1)
	log.Warn("reset", "reason", reason)
	relay.Abort(client, nil, relay.Unreachable)
}
