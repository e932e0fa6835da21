package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/quic-go/quic-go"

	"bentpipe/carrier"
	"bentpipe/qpep/gateway"
	"bentpipe/qpep/intercept"
	"bentpipe/qpep/terminal"
)

// protocol is the ALPN identifier (RFC 7301) of the original.
const protocol = "qpep-demo"

// defaults are those of the original, except for the differences in the README.
func defaults() carrier.Options {
	return carrier.Options{
		CCA:              "cubic",
		IW:               32,
		SlowStart:        "hystartpp",
		CarefulResume:    "off",
		Lifetime:         10 * time.Minute,
		AckRatio:         10,
		AckAfter:         100,
		MaxAckDelay:      25 * time.Millisecond,
		IdleTimeout:      300 * time.Second,
		KeepAlive:        100 * time.Second,
		StreamWindow:     2 << 20,
		ConnectionWindow: 48 << 20,
		MaxStreams:       40_000,
	}
}

// side has the flags of both boxes.
type side struct {
	options carrier.Options
	trust   carrier.Trust
	alpn    string
	keyLog  string
	qlog    string
	ready   string
}

func declareSide(flags *flag.FlagSet, peer string) *side {
	s := &side{options: defaults(), trust: carrier.Trust{Peer: peer}}
	if !carrier.Tuned {
		s.options.CCA, s.options.SlowStart = "", ""
		s.options.IW, s.options.AckRatio, s.options.MaxAckDelay = 0, 0, 0
	}
	s.options.Register(flags, "")
	s.trust.Register(flags, "")
	flags.StringVar(&s.alpn, "alpn", protocol, "application `protocol` that both sides name in the handshake")
	flags.StringVar(&s.keyLog, "sslkeylogfile", "", "append TLS secrets to that `file`")
	flags.StringVar(&s.qlog, "qlogdir", "", "write a qlog per QUIC connection into that `folder`")
	flags.StringVar(&s.ready, "ready", "", "make that `file` when this side is ready")
	return s
}

// open creates the log files and quic-go's configuration.
func (s *side) open() (*carrier.Logs, *quic.Config, error) {
	logs, err := carrier.OpenLogs(s.keyLog, s.qlog)
	if err != nil {
		return nil, nil, err
	}
	config, err := s.options.Config(logs)
	if err != nil {
		return nil, nil, carrier.Misused(err)
	}
	fmt.Println(s.options.Applied())
	return logs, config, nil
}

func terminalCommand(flags *flag.FlagSet) func(context.Context) error {
	s := declareSide(flags, "gateway")
	address := flags.String("gateway", "", "`host:port` of the gateway")
	port := flags.Uint("port", 8080, "TCP `port` to which intercepted connections are led (TPROXY)")
	listen := flags.String("listen", "127.0.0.1:8080", "`host:port` on which connections for -destination are taken")
	fixed := flags.String("destination", "", "`address:port` to which every connection goes, in place of interception")
	streamTimeout := flags.Duration("stream-timeout", 15*time.Second, "`time` that a TCP connection waits for the tunnel")
	return func(ctx context.Context) error {
		listener, destination, err := listenTCP(*fixed, *listen, uint16(*port))
		if err != nil {
			return err
		}
		logs, config, err := s.open()
		if err != nil {
			return err
		}
		defer logs.Close()
		dial, err := s.dialer(*address, logs, config)
		if err != nil {
			return err
		}
		t := &terminal.Terminal{Tunnel: terminal.NewTunnel(dial), Destination: destination, StreamTimeout: *streamTimeout}
		return runTerminal(ctx, t, listener, s.ready)
	}
}

func runTerminal(ctx context.Context, t *terminal.Terminal, listener *net.TCPListener, ready string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tunnelEnded := make(chan struct{})
	go func() {
		defer close(tunnelEnded)
		t.Tunnel.Run(ctx)
	}()
	go func() {
		if _, err := t.Tunnel.Wait(ctx); err == nil {
			if err := carrier.Announce(ready); err != nil {
				slog.Error("the ready file can't be made", "reason", err)
			}
		}
	}()
	go carrier.Report(ctx, func() []any {
		return []any{"open", t.Counters.Open.Load(), "total", t.Counters.Total.Load(), "broken", t.Counters.Broken.Load()}
	})
	slog.Info("terminal takes connections", "on", listener.Addr().String())
	err := t.Serve(ctx, listener)
	cancel()
	<-tunnelEnded
	return err
}

// listenTCP opens the listener of a terminal. The returned function gives the destination of a connection.
func listenTCP(fixed, listen string, port uint16) (*net.TCPListener, func(*net.TCPConn) (netip.AddrPort, error), error) {
	if fixed == "" {
		listener, err := intercept.Listen(port)
		return listener, intercept.Destination, err
	}
	destination, err := netip.ParseAddrPort(fixed)
	if err != nil {
		return nil, nil, carrier.Misused(fmt.Errorf("-destination %q is not an address with a port such as 192.0.2.1:80", fixed))
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, nil, fmt.Errorf("-listen: %w", err)
	}
	return listener.(*net.TCPListener), func(*net.TCPConn) (netip.AddrPort, error) { return destination, nil }, nil
}

// dialer returns a function that opens connections to the gateway, all from one UDP socket.
func (s *side) dialer(address string, logs *carrier.Logs, config *quic.Config) (func(context.Context) (*quic.Conn, error), error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, carrier.Misused(fmt.Errorf("-gateway %q is not a host and a port such as 192.0.2.1:4242", address))
	}
	trust, err := s.trust.Client(logs, s.alpn)
	if err != nil {
		return nil, carrier.Misused(err)
	}
	socket, err := carrier.ListenUDP(nil)
	if err != nil {
		return nil, err
	}
	transport := &quic.Transport{Conn: socket}
	return func(ctx context.Context) (*quic.Conn, error) {
		gateway, err := net.ResolveUDPAddr("udp", address)
		if err != nil {
			return nil, err
		}
		if s.options.ZeroRTT {
			return transport.DialEarly(ctx, gateway, trust, config)
		}
		return transport.Dial(ctx, gateway, trust, config)
	}, nil
}

func gatewayCommand(flags *flag.FlagSet) func(context.Context) error {
	s := declareSide(flags, "terminal")
	listen := flags.String("listen", ":4242", "UDP `host:port` for terminals")
	allow := flags.String("allow", "", "`networks` with ports that terminals may reach, such as \"10.0.0.0/8:80,443 [2001:db8::/32]\" "+
		"(default: all but loopback, link-local and multicast)")
	dialTimeout := flags.Duration("dial-timeout", 10*time.Second, "`time` for the TCP handshake with a server")
	headerTimeout := flags.Duration("header-timeout", 10*time.Second, "`time` for the header of a stream")
	admission := &gateway.Admission{}
	flags.IntVar(&admission.RetryFrom, "retry-from", 8, "pending handshakes from which on a terminal must prove its address (Retry)")
	flags.IntVar(&admission.PerSource, "handshakes-per-source", 16, "pending handshakes of one IPv4 address or IPv6 /64")
	flags.IntVar(&admission.All, "handshakes", 512, "pending handshakes of all sources")
	return func(ctx context.Context) error {
		policy, err := gateway.ParsePolicy(*allow)
		if err != nil {
			return carrier.Misused(err)
		}
		logs, config, err := s.open()
		if err != nil {
			return err
		}
		defer logs.Close()
		transport, listener, err := s.listener(*listen, logs, config, admission)
		if err != nil {
			return err
		}
		defer transport.Close()
		if err := carrier.Announce(s.ready); err != nil {
			return err
		}
		g := &gateway.Gateway{Policy: policy, DialTimeout: *dialTimeout, HeaderTimeout: *headerTimeout}
		go carrier.Report(ctx, func() []any {
			return []any{"open", g.Counters.Open.Load(), "total", g.Counters.Total.Load(), "refused", g.Counters.Refused.Load(),
				"handshakes", admission.Pending()}
		})
		slog.Info("gateway takes terminals", "on", transport.Conn.LocalAddr().String())
		return g.Serve(ctx, listener)
	}
}

func (s *side) listener(address string, logs *carrier.Logs, config *quic.Config, admission *gateway.Admission) (
	*quic.Transport, *quic.EarlyListener, error,
) {
	trust, err := s.trust.Server(logs, s.alpn)
	if err != nil {
		return nil, nil, carrier.Misused(err)
	}
	local, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, nil, carrier.Misused(fmt.Errorf("-listen: %w", err))
	}
	socket, err := carrier.ListenUDP(local)
	if err != nil {
		return nil, nil, err
	}
	resetKey, err := carrier.StatelessResetKey(s.trust.Key)
	if err != nil {
		return nil, nil, err
	}
	transport := &quic.Transport{
		Conn:                socket,
		StatelessResetKey:   resetKey,
		VerifySourceAddress: admission.MustProve,
		ConnContext:         admission.Admit,
	}
	listener, err := transport.ListenEarly(trust, config)
	return transport, listener, err
}

func pinCommand(flags *flag.FlagSet) func(context.Context) error {
	return func(context.Context) error {
		if flags.NArg() != 1 {
			return carrier.Misused(errors.New("name one PEM file with a certificate"))
		}
		pin, err := carrier.Pin(flags.Arg(0))
		if err != nil {
			return carrier.Misused(err)
		}
		fmt.Println(pin)
		return nil
	}
}
