// Package gateway is the gateway box of QPEP: it accepts streams from terminals, and connects each to the server that its header
// names (NDSS 2021 paper, section V-A).
package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"

	"bentpipe/qpep/header"
	"bentpipe/qpep/relay"
)

// Gateway serves terminals.
type Gateway struct {
	Policy        Policy
	DialTimeout   time.Duration // limit of the TCP handshake with a server
	HeaderTimeout time.Duration // limit from the opening of a stream to the last byte of its header
	Counters      Counters
}

// Counters count since the gateway's start.
type Counters struct {
	Open, Total, Refused atomic.Int64
}

// Serve accepts terminals from listener until ctx ends. It returns when all connections have ended.
func (g *Gateway) Serve(ctx context.Context, listener *quic.EarlyListener) error {
	var terminals sync.WaitGroup
	defer terminals.Wait()
	for {
		terminal, err := listener.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, quic.ErrServerClosed) {
				return nil
			}
			return err
		}
		terminals.Go(func() { g.serveTerminal(ctx, terminal) })
	}
}

// serveTerminal returns when the connection of the terminal and all its streams have ended. A peer that never authenticates causes
// no line in the log, because anybody can send packets.
func (g *Gateway) serveTerminal(ctx context.Context, terminal *quic.Conn) {
	log := slog.With("terminal", terminal.RemoteAddr().String())
	announced := make(chan bool, 1)
	go func() {
		select {
		case <-terminal.HandshakeComplete():
		case <-terminal.Context().Done():
		}
		known := terminal.ConnectionState().TLS.HandshakeComplete
		if known {
			Authenticated(terminal.Context())
			log.Info("terminal is here")
		}
		announced <- known
	}()
	leave := context.AfterFunc(ctx, func() { _ = terminal.CloseWithError(0, "gateway ends") })
	defer leave()
	var streams sync.WaitGroup
	defer streams.Wait()
	for {
		stream, err := terminal.AcceptStream(context.Background())
		if err != nil {
			if <-announced {
				log.Info("terminal has gone", "reason", err)
			}
			return
		}
		streams.Go(func() { g.serveStream(terminal.Context(), log, stream) })
	}
}

func (g *Gateway) serveStream(tunnel context.Context, log *slog.Logger, stream *quic.Stream) {
	g.Counters.Total.Add(1)
	g.Counters.Open.Add(1)
	defer g.Counters.Open.Add(-1)
	_ = stream.SetReadDeadline(time.Now().Add(g.HeaderTimeout))
	h, err := header.Read(stream)
	if err != nil {
		g.refuse(log, stream, relay.Malformed, err)
		return
	}
	_ = stream.SetReadDeadline(time.Time{})
	log = log.With("source", h.Source, "destination", h.Destination)
	if !g.Policy.Allows(h.Destination) {
		g.refuse(log, stream, relay.Forbidden, errors.New("policy"))
		return
	}
	// The context of the stream ends with STOP_SENDING or with the tunnel. Then the server's answer is no longer needed.
	server, err := g.dial(stream.Context(), h.Destination)
	if err != nil {
		g.refuse(log, stream, dialCode(err), err)
		return
	}
	log.Debug("connected")
	log.Debug("ended", "reason", relay.Join(tunnel, server, stream))
}

func (g *Gateway) refuse(log *slog.Logger, stream *quic.Stream, code quic.StreamErrorCode, reason error) {
	g.Counters.Refused.Add(1)
	log.Warn("refused", "code", code, "reason", reason)
	relay.Abort(nil, stream, code)
}

func (g *Gateway) dial(ctx context.Context, destination netip.AddrPort) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: g.DialTimeout}
	connection, err := dialer.DialContext(ctx, "tcp", destination.String())
	if err != nil {
		return nil, err
	}
	return connection.(*net.TCPConn), nil
}

func dialCode(err error) quic.StreamErrorCode {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return relay.Refused
	case errors.As(err, &timeout) && timeout.Timeout():
		return relay.TimedOut
	default:
		return relay.Unreachable
	}
}
