package main

import (
	"flag"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"bentpipe/qpep/header"
)

// The second connection to a gateway sends stream data in its first flight if and only if both sides enable 0-RTT.
func TestZeroRTTOnlyWhenBothSidesAskForIt(t *testing.T) {
	for _, c := range []struct {
		name              string
		gateway, terminal []string
		used              bool
	}{
		{"both", []string{"-zero-rtt"}, []string{"-zero-rtt"}, true},
		{"terminal alone", nil, []string{"-zero-rtt"}, false},
		{"gateway alone", []string{"-zero-rtt"}, nil, false},
		{"neither", nil, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			destination := netip.MustParseAddrPort(serve(t, echo))
			p := newMiddlebox(t)
			start(t, p.gatewayArguments(c.gateway...))
			flags := flag.NewFlagSet("", flag.ContinueOnError)
			s := declareSide(flags, "gateway")
			must(t, flags.Parse(append([]string{"-ca", p.keys + "/ca.pem", "-certificate", p.keys + "/terminal.pem",
				"-key", p.keys + "/terminal.key"}, c.terminal...)))
			config, err := s.options.Config(nil)
			must(t, err)
			dial, err := s.dialer(p.gateway, nil, config)
			must(t, err)
			for again := range 2 {
				connection, err := dial(t.Context())
				must(t, err)
				stream, err := connection.OpenStreamSync(t.Context())
				must(t, err)
				_, err = stream.Write(append(header.New(destination, destination).Append(nil), 'x'))
				must(t, err)
				must(t, stream.SetReadDeadline(time.Now().Add(patience)))
				_, err = io.ReadFull(stream, make([]byte, 1))
				must(t, err)
				if used := connection.ConnectionState().Used0RTT; used != (c.used && again == 1) {
					t.Errorf("connection %d used 0-RTT: %v", again, used)
				}
				must(t, connection.CloseWithError(0, ""))
			}
		})
	}
}

// A gateway without the session state of its terminals rejects their 0-RTT; the tunnel continues without 0-RTT.
func TestRejectedZeroRTT(t *testing.T) {
	p := newMiddlebox(t)
	gateway := spawn(t, p.gatewayArguments("-zero-rtt"))
	start(t, p.terminalArguments(serve(t, echo), "-zero-rtt", "-keep-alive", "300ms"))
	exchange := func() bool {
		client, err := net.Dial("tcp", p.terminal)
		if err != nil {
			return false // reset before connect returned: the tunnel had just ended
		}
		defer client.Close()
		must(t, client.SetDeadline(time.Now().Add(2*time.Second)))
		if _, err := client.Write([]byte("x")); err != nil {
			return false
		}
		_, err = io.ReadFull(client, make([]byte, 1))
		return err == nil
	}
	if !exchange() {
		t.Fatal("nothing goes through")
	}
	must(t, gateway.Process.Kill())
	_ = gateway.Wait()
	spawn(t, p.gatewayArguments("-zero-rtt"))
	await(t, "a connection that works", exchange)
}
