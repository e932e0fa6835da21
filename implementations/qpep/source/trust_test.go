package main

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"bentpipe/carrier"
	"bentpipe/qpep/relay"
)

// A side that isn't authenticated transfers no data.
func TestTrust(t *testing.T) {
	destination := serve(t, echo)
	other := keys(t)
	p := newMiddlebox(t)
	gatewayPin, err := carrier.Pin(p.keys + "/gateway.pem")
	must(t, err)
	terminalPin, err := carrier.Pin(p.keys + "/terminal.pem")
	must(t, err)
	otherPin, err := carrier.Pin(other + "/terminal.pem")
	must(t, err)
	for _, c := range []struct {
		name              string
		gateway, terminal []string
		carried           bool
	}{
		{"authority", nil, nil, true},
		{"pinned keys", []string{"-ca", "", "-pin", otherPin + ", " + terminalPin}, []string{"-ca", "", "-pin", gatewayPin}, true},
		{"gateway's key is not the pinned one", nil, []string{"-ca", "", "-pin", otherPin}, false},
		{"terminal's key is not the pinned one", []string{"-ca", "", "-pin", otherPin}, nil, false},
		{"gateway of another authority", []string{"-certificate", other + "/gateway.pem", "-key", other + "/gateway.key"}, nil, false},
		{"terminal of another authority", nil, []string{"-certificate", other + "/terminal.pem", "-key", other + "/terminal.key"}, false},
		{"gateway with another name", []string{"-certificate", p.keys + "/terminal.pem", "-key", p.keys + "/terminal.key"}, nil, false},
		{"terminal with another name", nil, []string{"-certificate", p.keys + "/gateway.pem", "-key", p.keys + "/gateway.key"}, false},
		{"terminal without a certificate", nil, []string{"-insecure-anyone", "-certificate", "", "-key", ""}, false},
		{"anyone", []string{"-insecure-anyone", "-certificate", "", "-key", ""}, []string{"-insecure-anyone", "-certificate", "", "-key", ""}, true},
		{"other protocol", nil, []string{"-alpn", "qpep"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			here := newMiddlebox(t)
			here.keys = p.keys
			start(t, here.gatewayArguments(c.gateway...))
			if c.carried {
				start(t, here.terminalArguments(destination, c.terminal...))
			} else {
				startUnready(t, here.terminalArguments(destination, append(c.terminal, "-stream-timeout", "1s")...), here.terminal)
			}
			// A refused connection may be reset before Dial or Write returns.
			client, err := net.Dial("tcp", here.terminal)
			if err == nil {
				defer client.Close()
				_, err = client.Write([]byte("x"))
			}
			if err == nil {
				_, err = io.ReadFull(client, make([]byte, 1))
			}
			if c.carried && err != nil {
				t.Errorf("nothing was carried: %v", err)
			}
			if !c.carried && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the client saw %v, want a reset", err)
			}
		})
	}
}

// startUnready starts a terminal whose tunnel can't be set up.
func startUnready(t testing.TB, arguments []string, address string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() { ended <- program.Run(ctx, arguments, func(string) string { return "" }, io.Discard) }()
	t.Cleanup(func() { cancel(); <-ended })
	await(t, "the terminal's listener", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

func TestWhoNamesNobodyIsNotStarted(t *testing.T) {
	folder := keys(t)
	own := []string{"-certificate", folder + "/gateway.pem", "-key", folder + "/gateway.key"}
	for name, c := range map[string]struct {
		arguments []string
		says      string
	}{
		"no certificate":   {nil, "-certificate"},
		"nobody to trust":  {own, "-pin"},
		"broken pin":       {append(own, "-pin", "sha256/short"), "32 bytes"},
		"no such CA":       {append(own, "-ca", folder+"/missing.pem"), "missing.pem"},
		"CA is no PEM":     {append(own, "-ca", folder+"/gateway.key"), "no certificate"},
		"key of another":   {[]string{"-certificate", folder + "/gateway.pem", "-key", folder + "/terminal.key"}, "can't be used"},
		"unknown argument": {[]string{"-nonsense"}, "-nonsense"},
		"broken policy":    {append(own, "-allow", "example.net"), "10.0.0.0/8:80"},
		"small packets":    {append(own, "-ca", folder+"/ca.pem", "-packet-size", "500"), "1200"},
		"no controller":    {append(own, "-ca", folder+"/ca.pem", "-cca", "vegas"), "newreno, cubic"},
		"address in use":   {append(own, "-ca", folder+"/ca.pem", "-listen", "nowhere"), "-listen"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			code := program.Run(t.Context(), append([]string{"gateway"}, c.arguments...), func(string) string { return "" }, &stderr)
			if code != carrier.ExitUsage || !strings.Contains(stderr.String(), c.says) || strings.Count(stderr.String(), "\n") != 1 {
				t.Errorf("exit code %d, %q; want %d and one line with %q", code, stderr.String(), carrier.ExitUsage, c.says)
			}
		})
	}
}

// The gateway resets a stream without a valid header, without the rest of a header after a time-out, or with a destination
// that is forbidden or refuses the connection.
func TestBrokenHeadersAreRefused(t *testing.T) {
	p := newMiddlebox(t)
	start(t, p.gatewayArguments("-header-timeout", "300ms"))
	trust := carrier.Trust{Certificate: p.keys + "/terminal.pem", Key: p.keys + "/terminal.key", CA: p.keys + "/ca.pem", Peer: "gateway"}
	client, err := trust.Client(nil, protocol)
	must(t, err)
	connection, err := quic.DialAddr(t.Context(), p.gateway, client, &quic.Config{MaxIdleTimeout: patience})
	must(t, err)
	defer func() { _ = connection.CloseWithError(0, "") }()
	for name, c := range map[string]struct {
		bytes string
		fin   bool
		code  quic.StreamErrorCode
	}{
		"garbage":     {"GET / HTTP/1.1\r\n", false, relay.Malformed},
		"half of one": {"\x04\x04\x7f\x00\x00", false, relay.Malformed},
		"cut":         {"\x04\x04\x7f\x00\x00", true, relay.Malformed},
		"forbidden":   {"\x04\x04\x7f\x00\x00\x01\x00\x10\xc0\x00\x02\x01\x50\x00", false, relay.Forbidden},
		"refused":     {"\x04\x04\x7f\x00\x00\x01\x00\x10\x7f\x00\x00\x01\x01\x00", false, relay.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := connection.OpenStreamSync(t.Context())
			must(t, err)
			_, err = stream.Write([]byte(c.bytes))
			must(t, err)
			if c.fin {
				must(t, stream.Close())
			}
			must(t, stream.SetReadDeadline(time.Now().Add(patience)))
			_, err = stream.Read(make([]byte, 1))
			var refused *quic.StreamError
			if !errors.As(err, &refused) || refused.ErrorCode != c.code || !refused.Remote {
				t.Errorf("%v, want a reset with code %d", err, c.code)
			}
		})
	}
}
