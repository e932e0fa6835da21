// Command quic-pep is a pair of explicit QUIC proxies around a satellite link. It implements "Exploring Proxying QUIC and HTTP/3
// for Satellite Communication" (IFIP Networking 2022) with quic-go.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"

	"bentpipe/carrier"
	"bentpipe/quicpep/splice"
)

const usage = `quic-pep COMMAND [flags]

  terminal   the hop on the customer's LAN: takes QUIC connections from clients, and has one to the gateway for each
  gateway    the hop beyond the satellite: takes QUIC connections from terminals, and has one to the server for each

Every flag can be given as a variable: -max-ack-delay is MAX_ACK_DELAY. 'quic-pep COMMAND -h' lists them.
`

var program = carrier.Program{Name: "quic-pep", Usage: usage, Commands: map[string]carrier.Command{
	"terminal": func(flags *flag.FlagSet) func(context.Context) error { return declare(flags, terminal) },
	"gateway":  func(flags *flag.FlagSet) func(context.Context) error { return declare(flags, gateway) },
}}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := program.Run(ctx, os.Args[1:], os.Getenv, os.Stderr)
	stop()
	os.Exit(code)
}

type role int

const (
	terminal role = iota
	gateway
)

// hop has the flags of one of the two proxies. Each of its segments has its own options and trust.
type hop struct {
	role                       role
	satellite, edge            carrier.Options
	clients, next              carrier.Trust
	listen, address, handshake string
	protocols                  string
	keyLog, qlog, ready        string
}

// defaults returns the default options of a segment. In the paper's tuned scenario, the initial windows from client to server are
// 10, 100, 100 and 10 packets.
func defaults(window int) carrier.Options {
	options := carrier.Options{
		CCA: "cubic", IW: window, MaxAckDelay: 25 * time.Millisecond, IdleTimeout: 30 * time.Second,
		StreamWindow: 2 << 20, ConnectionWindow: 16 << 20, MaxStreams: 1000, CarefulResume: "off", Lifetime: 10 * time.Minute,
	}
	if !carrier.Tuned {
		options.CCA, options.IW, options.MaxAckDelay = "", 0, 0
	}
	return options
}

func declare(flags *flag.FlagSet, role role) func(context.Context) error {
	h := &hop{role: role, satellite: defaults(100), edge: defaults(10)}
	// Clients are not authenticated, and the proxies don't authenticate to the server. Between the two proxies both sides do.
	if role == terminal {
		h.clients = carrier.Trust{Anyone: true, Peer: "terminal"}
		h.next = carrier.Trust{Peer: "gateway"}
	} else {
		h.clients = carrier.Trust{Peer: "terminal"}
		h.next = carrier.Trust{Peer: "server", Anonymous: true}
	}
	h.satellite.Register(flags, "")
	h.edge.Register(flags, "edge-")
	h.clients.Register(flags, "")
	h.next.Register(flags, "next-")
	flags.StringVar(&h.listen, "listen", ":4433", "UDP `host:port` for the hop before")
	flags.StringVar(&h.address, "next", "", "`host:port` of the next hop")
	flags.StringVar(&h.handshake, "handshakes", "parallel", "`order` of the handshakes: parallel, or sequential (the next hop's first)")
	flags.StringVar(&h.protocols, "alpn", "h3,hq-interop", "application `protocols` that are spliced, with commas")
	flags.StringVar(&h.keyLog, "sslkeylogfile", "", "append TLS secrets to that `file`")
	flags.StringVar(&h.qlog, "qlogdir", "", "write a qlog per QUIC connection into that `folder`")
	flags.StringVar(&h.ready, "ready", "", "make that `file` when this hop is ready")
	return h.run
}

func (h *hop) run(ctx context.Context) error {
	if h.handshake != "parallel" && h.handshake != "sequential" {
		return carrier.Misused(fmt.Errorf("-handshakes %q is neither parallel nor sequential", h.handshake))
	}
	if _, _, err := net.SplitHostPort(h.address); err != nil {
		return carrier.Misused(fmt.Errorf("-next %q is not a host and a port such as 192.0.2.1:443", h.address))
	}
	logs, err := carrier.OpenLogs(h.keyLog, h.qlog)
	if err != nil {
		return err
	}
	defer logs.Close()
	before, after := h.edge, h.satellite
	if h.role == gateway {
		before, after = h.satellite, h.edge
	}
	dial, err := h.dialer(logs, after)
	if err != nil {
		return err
	}
	spliced := &splice.Hop{Dial: dial, Protocols: strings.Split(h.protocols, ","), Sequential: h.handshake == "sequential"}
	listener, err := h.listener(spliced, logs, before)
	if err != nil {
		return err
	}
	fmt.Println(h.satellite.Applied())
	if err := carrier.Announce(h.ready); err != nil {
		return err
	}
	go carrier.Report(ctx, func() []any { return []any{"open", spliced.Open.Load(), "total", spliced.Total.Load()} })
	slog.Info("takes connections", "on", listener.Addr().String(), "next", h.address, "handshakes", h.handshake)
	return spliced.Serve(ctx, listener)
}

func (h *hop) listener(spliced *splice.Hop, logs *carrier.Logs, options carrier.Options) (*quic.EarlyListener, error) {
	config, err := configuration(logs, options)
	if err != nil {
		return nil, err
	}
	trust, err := h.clients.Server(logs)
	if err != nil {
		return nil, carrier.Misused(err)
	}
	local, err := net.ResolveUDPAddr("udp", h.listen)
	if err != nil {
		return nil, carrier.Misused(fmt.Errorf("-listen: %w", err))
	}
	socket, err := carrier.ListenUDP(local)
	if err != nil {
		return nil, err
	}
	resetKey, err := carrier.StatelessResetKey(h.clients.Key)
	if err != nil {
		return nil, err
	}
	return spliced.Listen(socket, resetKey, trust, config)
}

// dialer returns a function that opens connections to the next hop, all from one UDP socket.
func (h *hop) dialer(logs *carrier.Logs, options carrier.Options) (func(context.Context, []string) (*quic.Conn, error), error) {
	config, err := configuration(logs, options)
	if err != nil {
		return nil, err
	}
	trust, err := h.next.Client(logs)
	if err != nil {
		return nil, carrier.Misused(err)
	}
	socket, err := carrier.ListenUDP(nil)
	if err != nil {
		return nil, err
	}
	transport := &quic.Transport{Conn: socket}
	return func(ctx context.Context, protocols []string) (*quic.Conn, error) {
		address, err := net.ResolveUDPAddr("udp", h.address)
		if err != nil {
			return nil, err
		}
		return transport.Dial(ctx, address, withProtocols(trust, protocols), config)
	}, nil
}

func withProtocols(trust *tls.Config, protocols []string) *tls.Config {
	trust = trust.Clone()
	trust.NextProtos = protocols
	return trust
}

// configuration is quic-go's configuration, with equal limits for unidirectional and bidirectional streams.
func configuration(logs *carrier.Logs, options carrier.Options) (*quic.Config, error) {
	config, err := options.Config(logs)
	if err != nil {
		return nil, carrier.Misused(err)
	}
	config.MaxIncomingUniStreams = options.MaxStreams
	return config, nil
}
