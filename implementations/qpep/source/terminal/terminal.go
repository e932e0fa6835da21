// Package terminal is the terminal box of QPEP: it accepts TCP connections at once, in the name of their destinations, and carries
// each in a stream of the tunnel to the gateway (NDSS 2021 paper, section V-A).
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
	// Destination returns the destination of an accepted connection. After an error the connection is reset.
	Destination func(*net.TCPConn) (netip.AddrPort, error)
	// StreamTimeout is the longest time for which an accepted connection waits for the tunnel. Then it is reset.
	StreamTimeout time.Duration
	Counters      Counters
}

// Counters count since the terminal's start.
type Counters struct {
	Open, Total, Broken atomic.Int64
}

// Serve accepts connections from listener until ctx ends. It returns when all connections have ended.
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

// isPassing reports whether accept(2) may work again: descriptors or memory ran out, or the client closed too early.
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
	// The header is sent without waiting for payload, so that a server that sends first can begin.
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
