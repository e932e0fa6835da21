// Package splice ends QUIC connections and carries what is in them over others to the next hop: connection splitting after
// "Exploring Proxying QUIC and HTTP/3 for Satellite Communication" (IFIP Networking 2022, section II-D). Stream n of one
// connection is stream n of the other, so that HTTP/3 (RFC 9114), whose frames name streams, doesn't notice.
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

// Hop takes QUIC connections and has one to the next hop for each.
type Hop struct {
	// Dial connects to the next hop, offering these protocols (ALPN, RFC 7301).
	Dial func(ctx context.Context, protocols []string) (*quic.Conn, error)
	// Protocols that are spliced, in no order: the client's order decides.
	Protocols []string
	// Sequential completes the next hop's handshake before it answers the client's, as the paper's h3 mode does. Otherwise
	// both run at once: the client may send before anybody knows that the server can be reached.
	Sequential bool
	Open       atomic.Int64
	Total      atomic.Int64
}

// crossing is the connection to the next hop that belongs to one from the client.
type crossing struct {
	client context.Context // ends with the client's connection
	once   sync.Once
	done   chan struct{}
	next   *quic.Conn
	err    error
}

type crossingKey struct{}

// errorUnreachable closes a client's connection whose next hop can't be had.
const errorUnreachable quic.ApplicationErrorCode = 1

// Listen makes the listener of h on socket. config's TLS configuration is that towards clients.
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

// onClientHello starts the connection to the next hop as soon as it is known what the client wants to speak.
func (h *Hop) onClientHello(trust *tls.Config) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := hello.Context().Value(crossingKey{}).(*crossing)
		offered := slices.DeleteFunc(slices.Clone(hello.SupportedProtos), func(p string) bool { return !slices.Contains(h.Protocols, p) })
		if len(offered) == 0 {
			return nil, fmt.Errorf("the client offers %v, none of %v", hello.SupportedProtos, h.Protocols)
		}
		if !h.Sequential {
			// What is answered now can't depend on the server any more.
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

// Serve takes clients from listener until ctx ends, and returns when all of their connections have ended.
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

// join carries streams both ways until one of the connections has ended, and ends the other one the same way.
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

// closeLike closes a connection as the other one was closed: with the same application error (RFC 9000 §20.2).
func closeLike(connection, ended *quic.Conn) {
	var application *quic.ApplicationError
	if errors.As(context.Cause(ended.Context()), &application) {
		_ = connection.CloseWithError(application.ErrorCode, application.ErrorMessage)
		return
	}
	_ = connection.CloseWithError(errorUnreachable, "the other side of the proxy is gone")
}

func both(out, in *quic.Stream) {
	go relay(out, in)
	go relay(in, out)
}

func one(out *quic.SendStream, in *quic.ReceiveStream) { go relay(out, in) }

// forward opens a stream for every one that comes, in their order: their numbers are then the same (RFC 9000 §2.1).
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

// misnumbered can't happen while streams are taken and opened in order by one goroutine; HTTP/3 would misread the rest.
func misnumbered(from, to *quic.Conn, in, out quic.StreamID) {
	reason := fmt.Sprintf("stream %d would become %d", in, out)
	_ = from.CloseWithError(errorUnreachable, reason)
	_ = to.CloseWithError(errorUnreachable, reason)
}
