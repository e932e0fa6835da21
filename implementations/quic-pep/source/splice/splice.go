// Package splice ends QUIC connections, and carries their streams over other connections to the next hop. This is the connection
// splitting of "Exploring Proxying QUIC and HTTP/3 for Satellite Communication" (IFIP Networking 2022, section II-D). Stream n of
// one connection is stream n of the other, because frames of HTTP/3 (RFC 9114) contain stream numbers.
package splice

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quic-go/quic-go"
)

// Hop accepts QUIC connections, and opens a connection to the next hop for each.
type Hop struct {
	// Dial connects to the next hop, offering these protocols (ALPN, RFC 7301).
	Dial func(ctx context.Context, protocols []string) (*quic.Conn, error)
	// Protocols that are spliced. Their order has no meaning: the client's order decides.
	Protocols []string
	// Sequential: the handshake with the next hop is completed before the client is answered, as in the paper's h3 mode. Otherwise
	// both handshakes run at once, and the client may send before it is known whether the server can be reached.
	Sequential bool
	Open       atomic.Int64
	Total      atomic.Int64
}

// crossing is the connection to the next hop that belongs to a connection from a client.
type crossing struct {
	client context.Context // ends with the client's connection
	once   sync.Once
	done   chan struct{}
	next   *quic.Conn
	err    error
}

type crossingKey struct{}

// errorUnreachable is the code that closes a client's connection when the next hop can't be reached.
const errorUnreachable quic.ApplicationErrorCode = 1

// Listen makes the listener of h on socket. trust and config are those towards clients.
func (h *Hop) Listen(socket net.PacketConn, resetKey *quic.StatelessResetKey, trust *tls.Config, config *quic.Config) (*quic.EarlyListener, error) {
	transport := &quic.Transport{
		Conn:              socket,
		StatelessResetKey: resetKey,
		ConnContext: func(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
			c := &crossing{done: make(chan struct{})}
			ctx = context.WithValue(ctx, crossingKey{}, c)
			c.client = ctx
			return ctx, nil
		},
	}
	trust = trust.Clone()
	trust.GetConfigForClient = h.onClientHello(trust.Clone())
	return transport.ListenEarly(trust, config)
}

// onClientHello starts the connection to the next hop as soon as the client's protocols are known.
func (h *Hop) onClientHello(trust *tls.Config) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := hello.Context().Value(crossingKey{}).(*crossing)
		offered := slices.DeleteFunc(slices.Clone(hello.SupportedProtos), func(p string) bool { return !slices.Contains(h.Protocols, p) })
		if len(offered) == 0 {
			return nil, fmt.Errorf("the client offers %v, none of %v", hello.SupportedProtos, h.Protocols)
		}
		if !h.Sequential {
			// The client is answered now, so the choice of protocol can't depend on the server.
			offered = offered[:1]
		}
		c.once.Do(func() { go h.cross(c, offered) })
		if h.Sequential {
			<-c.done
			if c.err != nil {
				return nil, c.err
			}
			offered = []string{c.next.ConnectionState().TLS.NegotiatedProtocol}
		}
		answer := trust.Clone()
		answer.NextProtos = offered
		return answer, nil
	}
}

func (h *Hop) cross(c *crossing, protocols []string) {
	defer close(c.done)
	c.next, c.err = h.Dial(c.client, protocols)
}

// Serve accepts clients from listener until ctx ends. It returns when all connections have ended.
func (h *Hop) Serve(ctx context.Context, listener *quic.EarlyListener) error {
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		client, err := listener.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, quic.ErrServerClosed) {
				return nil
			}
			return err
		}
		clients.Go(func() { h.serve(ctx, client) })
	}
}

func (h *Hop) serve(ctx context.Context, client *quic.Conn) {
	h.Total.Add(1)
	h.Open.Add(1)
	defer h.Open.Add(-1)
	log := slog.With("client", client.RemoteAddr().String())
	c := client.Context().Value(crossingKey{}).(*crossing)
	select {
	case <-c.done:
	case <-ctx.Done():
		_ = client.CloseWithError(errorUnreachable, "the hop ends")
		<-c.done
	}
	if c.err != nil {
		log.Warn("the next hop can't be reached", "reason", c.err)
		_ = client.CloseWithError(errorUnreachable, "the next hop can't be reached")
		return
	}
	leave := context.AfterFunc(ctx, func() { _ = client.CloseWithError(0, "the hop ends") })
	defer leave()
	log.Debug("spliced", "next", c.next.RemoteAddr().String())
	join(client, c.next)
	log.Debug("ended", "client", context.Cause(client.Context()), "next", context.Cause(c.next.Context()))
}

// join carries streams in both directions until one of the connections ends. It ends the other connection in the same way.
func join(client, next *quic.Conn) {
	defer context.AfterFunc(client.Context(), func() { closeLike(next, client) })()
	defer context.AfterFunc(next.Context(), func() { closeLike(client, next) })()
	var directions sync.WaitGroup
	for _, d := range []struct{ from, to *quic.Conn }{{client, next}, {next, client}} {
		directions.Go(func() { forward(d.from, d.to, d.from.AcceptStream, d.to.OpenStreamSync, both) })
		directions.Go(func() { forward(d.from, d.to, d.from.AcceptUniStream, d.to.OpenUniStreamSync, one) })
	}
	directions.Wait()
}

// closeLike closes a connection with the application error that ended the other connection (RFC 9000 §20.2).
func closeLike(connection, ended *quic.Conn) {
	var application *quic.ApplicationError
	if errors.As(context.Cause(ended.Context()), &application) {
		_ = connection.CloseWithError(application.ErrorCode, application.ErrorMessage)
		return
	}
	_ = connection.CloseWithError(errorUnreachable, "the other connection of the proxy has ended")
}

func both(out, in *quic.Stream) {
	go relay(out, in)
	go relay(in, out)
}

func one(out *quic.SendStream, in *quic.ReceiveStream) { go relay(out, in) }

// forward opens a stream for each accepted stream, in the same order. So both have the same number (RFC 9000 §2.1).
func forward[In, Out interface{ StreamID() quic.StreamID }](
	from, to *quic.Conn, accept func(context.Context) (In, error), open func(context.Context) (Out, error), join func(Out, In),
) {
	for {
		in, err := accept(context.Background())
		if err != nil {
			return
		}
		out, err := open(from.Context())
		if err != nil {
			return
		}
		if in.StreamID() != out.StreamID() {
			misnumbered(from, to, in.StreamID(), out.StreamID())
			return
		}
		join(out, in)
	}
}

// misnumbered closes both connections when two streams have different numbers, because HTTP/3 would misread them. This can't happen
// while one goroutine accepts and opens streams in order.
func misnumbered(from, to *quic.Conn, in, out quic.StreamID) {
	reason := fmt.Sprintf("stream %d would become %d", in, out)
	_ = from.CloseWithError(errorUnreachable, reason)
	_ = to.CloseWithError(errorUnreachable, reason)
}
