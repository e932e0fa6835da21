package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"bentpipe/carrier/harness"
)

// The tests run both hops like the command, over loopback, between real QUIC clients and servers.

const patience = harness.Patience

var must, keys = harness.Must, harness.Keys

// chain starts both hops in front of server and returns where clients connect to.
func chain(t *testing.T, folder, server string, extra ...string) string {
	t.Helper()
	gateway := start(t, append([]string{"gateway", "-next", server, "-ca", folder + "/ca.pem", "-certificate", folder + "/gateway.pem",
		"-key", folder + "/gateway.key", "-next-ca", folder + "/ca.pem"}, extra...))
	return start(t, append([]string{"terminal", "-next", gateway, "-certificate", folder + "/terminal.pem", "-key", folder + "/terminal.key",
		"-next-ca", folder + "/ca.pem", "-next-certificate", folder + "/terminal.pem", "-next-key", folder + "/terminal.key"}, extra...))
}

// start runs a hop and returns its address.
func start(t *testing.T, arguments []string) string {
	t.Helper()
	address := harness.Address()
	harness.Start(t, program, append(arguments, "-listen", address))
	return address
}

func serverTLS(t *testing.T, folder string, protocols ...string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(folder+"/server.pem", folder+"/server.key")
	must(t, err)
	return &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: protocols}
}

// serve runs a QUIC server that calls handle for each connection.
func serve(t *testing.T, folder string, handle func(*quic.Conn)) string {
	t.Helper()
	listener, err := quic.ListenAddr("127.0.0.1:0", serverTLS(t, folder, "hq-interop"), nil)
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept(context.Background())
			if err != nil {
				return
			}
			go handle(connection)
		}
	}()
	return listener.Addr().String()
}

func dial(t *testing.T, address string) *quic.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	connection, err := quic.DialAddr(ctx, address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"hq-interop"}}, nil)
	must(t, err)
	t.Cleanup(func() { _ = connection.CloseWithError(0, "") })
	return connection
}

var bothOrders = []string{"parallel", "sequential"}

func TestHTTP3GoesThroughUnchanged(t *testing.T) {
	folder := keys(t)
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	server := &http3.Server{
		TLSConfig: http3.ConfigureTLSConfig(serverTLS(t, folder)),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %d %s", r.Method, r.URL.Path, len(body), strings.Repeat("x", 200_000))
		}),
	}
	go func() { _ = server.Serve(socket) }()
	t.Cleanup(func() { _ = server.Close() })
	for _, order := range bothOrders {
		t.Run(order, func(t *testing.T) {
			address := chain(t, folder, socket.LocalAddr().String(), "-handshakes", order)
			transport := &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
			t.Cleanup(func() { _ = transport.Close() })
			client := &http.Client{Transport: transport, Timeout: patience}
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() {
					response, err := client.Post(fmt.Sprintf("https://%s/%d", address, i), "text/plain", strings.NewReader(strings.Repeat("y", 50_000)))
					if err != nil {
						t.Error(err)
						return
					}
					defer response.Body.Close()
					body, err := io.ReadAll(response.Body)
					want := fmt.Sprintf("POST /%d 50000 %s", i, strings.Repeat("x", 200_000))
					if err != nil || string(body) != want {
						t.Errorf("request %d: %v, %d bytes, want %d", i, err, len(body), len(want))
					}
				})
			}
			all.Wait()
		})
	}
}

func TestStreamsKeepTheirNumbers(t *testing.T) {
	folder := keys(t)
	type seen struct{ bidirectional, unidirectional []quic.StreamID }
	got := make(chan seen, 1)
	const count = 5
	address := chain(t, folder, serve(t, folder, func(c *quic.Conn) {
		var s seen
		for range count {
			in, err := c.AcceptStream(context.Background())
			if err != nil {
				return
			}
			s.bidirectional = append(s.bidirectional, in.StreamID())
			uni, err := c.AcceptUniStream(context.Background())
			if err != nil {
				return
			}
			s.unidirectional = append(s.unidirectional, uni.StreamID())
		}
		out, _ := c.OpenUniStream()
		_, _ = out.Write([]byte("from the server"))
		_ = out.Close()
		got <- s
	}))
	client := dial(t, address)
	var sent seen
	for range count {
		stream, err := client.OpenStream()
		must(t, err)
		_, err = stream.Write([]byte("a"))
		must(t, err)
		sent.bidirectional = append(sent.bidirectional, stream.StreamID())
		uni, err := client.OpenUniStream()
		must(t, err)
		_, err = uni.Write([]byte("b"))
		must(t, err)
		sent.unidirectional = append(sent.unidirectional, uni.StreamID())
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	back, err := client.AcceptUniStream(ctx)
	must(t, err)
	text, err := io.ReadAll(back)
	if err != nil || string(text) != "from the server" || back.StreamID() != 3 {
		t.Errorf("stream %d: %q, %v", back.StreamID(), text, err)
	}
	if s := <-got; fmt.Sprint(s) != fmt.Sprint(sent) {
		t.Errorf("the server saw %v, the client sent %v", s, sent)
	}
}

func TestCodesOfResetStopAndCloseArrive(t *testing.T) {
	folder := keys(t)
	resets, stops := make(chan error, 1), make(chan error, 1)
	address := chain(t, folder, serve(t, folder, func(c *quic.Conn) {
		stream, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		_, err = io.ReadAll(stream)
		resets <- err
		<-stream.Context().Done()
		stops <- context.Cause(stream.Context())
		_ = c.CloseWithError(79, "enough")
	}))
	client := dial(t, address)
	stream, err := client.OpenStream()
	must(t, err)
	_, err = stream.Write([]byte("x"))
	must(t, err)
	stream.CancelWrite(77)
	expectStream(t, <-resets, 77)
	stream.CancelRead(78)
	expectStream(t, <-stops, 78)
	<-client.Context().Done()
	var closed *quic.ApplicationError
	if err := context.Cause(client.Context()); !errors.As(err, &closed) || closed.ErrorCode != 79 || closed.ErrorMessage != "enough" {
		t.Errorf("the client saw %v, want code 79", err)
	}
}

func expectStream(t *testing.T, err error, code quic.StreamErrorCode) {
	t.Helper()
	var e *quic.StreamError
	if !errors.As(err, &e) || e.ErrorCode != code || !e.Remote {
		t.Errorf("the server saw %v, want code %d", err, code)
	}
}

// The difference between the two modes of the paper: whether the client's handshake depends on the server's.
func TestOrderOfHandshakes(t *testing.T) {
	folder := keys(t)
	nobody, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	defer nobody.Close()
	try := func(order string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		address := chain(t, folder, nobody.LocalAddr().String(), "-handshakes", order)
		connection, err := quic.DialAddr(ctx, address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"hq-interop"}}, nil)
		if err == nil {
			_ = connection.CloseWithError(0, "")
		}
		return err
	}
	if err := try("parallel"); err != nil {
		t.Errorf("parallel: the handshake waited for a server that isn't there: %v", err)
	}
	if try("sequential") == nil {
		t.Error("sequential: the handshake ended without the server's")
	}
}

func TestSlowReaderHoldsUpTheServer(t *testing.T) {
	folder := keys(t)
	var written sync.Map
	address := chain(t, folder, serve(t, folder, func(c *quic.Conn) {
		stream, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		total := 0
		for block := make([]byte, 32<<10); ; {
			n, err := stream.Write(block)
			total += n
			written.Store("bytes", total)
			if err != nil {
				return
			}
		}
	}))
	stream, err := dial(t, address).OpenStream()
	must(t, err)
	_, err = stream.Write([]byte("x"))
	must(t, err)
	last := 0
	for deadline := time.Now().Add(patience); ; {
		time.Sleep(500 * time.Millisecond)
		now, _ := written.Load("bytes")
		if now != nil && now.(int) == last {
			break
		}
		if now != nil {
			last = now.(int)
		}
		if time.Now().After(deadline) {
			t.Fatal("the server writes on and on")
		}
	}
	if limit := 3 * (6 << 20); last > limit {
		t.Errorf("the server wrote %d bytes for a client that reads nothing, want less than %d", last, limit)
	}
}
