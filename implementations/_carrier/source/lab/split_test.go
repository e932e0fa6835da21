package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bentpipe/carrier/harness"
)

func TestConnections(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	asBefore := l.asBefore(t, "terminal", "gateway")
	harness.Connections(t, l.split)
	t.Run("IPv6", func(t *testing.T) {
		client := l.to(t, l.serve(t, server6, harness.Echo))()
		_, err := client.Write([]byte("six"))
		must(t, err)
		must(t, client.CloseWrite())
		if answer, err := io.ReadAll(client); err != nil || string(answer) != "six" {
			t.Errorf("%q, %v", answer, err)
		}
	})
	for name, address := range map[string]string{"refused": server4 + ":9", "link-local": "169.254.1.1:80"} {
		t.Run(name, func(t *testing.T) { resets(t, l, address) })
	}
	t.Run("reset of a client whose server does not read", func(t *testing.T) { resetBeforeSlowServer(t, l) })
	t.Run("reset of a server whose client does not read", func(t *testing.T) { resetBeforeSlowClient(t, l) })
	asBefore()
}

func resets(t *testing.T, l *lab, address string) {
	client, err := l.dial(t, address)
	if err == nil { // the reset may come as fast as the handshake
		_, err = client.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v, want a reset", err)
	}
}

// fill writes until the buffers are full, because the other end doesn't read.
func fill(c *net.TCPConn) error {
	_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
	for block := make([]byte, 1<<20); ; {
		if _, err := c.Write(block); err != nil {
			_ = c.SetWriteDeadline(time.Time{})
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return err
		}
	}
}

func resetBeforeSlowServer(t *testing.T, l *lab) {
	taken := make(chan *net.TCPConn, 1)
	client := l.split(t, func(c *net.TCPConn) { taken <- c })()
	server := <-taken
	defer server.Close()
	must(t, fill(client))
	must(t, client.SetLinger(0))
	must(t, client.Close())
	harness.Await(t, "the reset at a server that doesn't read", func() bool { return pendingError(t, server) != nil })
}

func resetBeforeSlowClient(t *testing.T, l *lab) {
	failed := make(chan error, 1)
	client := l.split(t, func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		failed <- fill(c)
		_ = c.SetLinger(0)
		_ = c.Close()
	})()
	must(t, client.CloseWrite())
	must(t, <-failed)
	harness.Await(t, "the reset at a client that doesn't read", func() bool { return pendingError(t, client) != nil })
}

// The limit of streams is a quarter above the number of concurrent connections. If earlier connections left streams open,
// later connections would reach the limit.
func TestThousandConnectionsLeaveNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t, "MAX_STREAMS=1250")
	asBefore := l.asBefore(t, "terminal", "gateway")
	connect := l.split(t, harness.Echo)
	harness.AtOnce(t, 1000, connect, func() {
		for _, side := range []string{"terminal", "gateway"} {
			megabytes := l.memory(t, side) >> 20
			t.Logf("1000 connections at once: %s %d MB", side, megabytes)
			if megabytes >= 300 {
				t.Errorf("the %s has %d MB, want less than 300", side, megabytes)
			}
		}
	})
	asBefore()
	harness.Vanishing(t, 1000, connect)
	asBefore()
	harness.AtOnce(t, 1000, connect, func() {})
	asBefore()
}

func TestConnectionWithoutAStreamIsReset(t *testing.T) {
	t.Parallel()
	l := newLab(t, "MAX_STREAMS=1")
	address := l.serve(t, server4, harness.Echo)
	first := l.to(t, address)()
	_, err := first.Write([]byte("x"))
	must(t, err)
	_, err = io.ReadFull(first, make([]byte, 1))
	must(t, err)
	resets(t, l, address)
	must(t, first.Close())
	works(t, l, address)
}

func TestKillingEitherSideLeavesNothingStuck(t *testing.T) {
	for _, which := range []string{"gateway", "terminal"} {
		for _, after := range []time.Duration{3 * time.Millisecond, 300 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s after %s", which, after), func(t *testing.T) { t.Parallel(); kill(t, which, after) })
		}
	}
}

// kill kills a side while connections transfer data. The side is restarted after both ends have noticed.
func kill(t *testing.T, which string, after time.Duration) {
	l := newLab(t)
	other := map[string]string{"gateway": "terminal", "terminal": "gateway"}[which]
	var serving atomic.Int64
	address := l.serve(t, server4, func(c *net.TCPConn) {
		serving.Add(1)
		defer serving.Add(-1)
		harness.Echo(c)
	})
	asBefore := l.asBefore(t, other)
	ended := harness.Busy(20, l.to(t, address))
	time.Sleep(after)
	l.kill(t, which)
	killed := time.Now()
	for range cap(ended) {
		select {
		case err := <-ended:
			// After a killed terminal, the kernel ends the connections, by FIN or RST; after a killed gateway, the terminal does.
			if which == "gateway" && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a client saw %v, want a reset", err)
			}
		case <-time.After(patience):
			t.Fatal("a client is stuck")
		}
	}
	for serving.Load() > 0 && time.Since(killed) < patience {
		time.Sleep(50 * time.Millisecond)
	}
	if stuck := serving.Load(); stuck > 0 {
		t.Errorf("%d servers are stuck", stuck)
	}
	t.Logf("both ends knew of the %s's end after %.1f s", which, time.Since(killed).Seconds())
	asBefore()
	l.start(t, which)
	works(t, l, address)
}

// works waits until a connection transfers data.
func works(t *testing.T, l *lab, address string) {
	t.Helper()
	harness.Await(t, "a connection that works", func() bool {
		client, err := l.dial(t, address)
		if err != nil {
			return false
		}
		defer client.Close()
		_ = client.SetDeadline(time.Now().Add(6 * time.Second))
		if _, err := client.Write([]byte("x")); err != nil {
			return false
		}
		_, err = io.ReadFull(client, make([]byte, 1))
		return err == nil
	})
}

// A restarted gateway answers the next packet of its terminals with a stateless reset, so that no terminal waits 30 s.
func TestRestartedGatewayTellsItsTerminals(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	address := l.serve(t, server4, harness.Echo)
	client := l.to(t, address)()
	_, err := client.Write([]byte("x"))
	must(t, err)
	_, err = io.ReadFull(client, make([]byte, 1))
	must(t, err)
	l.kill(t, "gateway")
	l.start(t, "gateway")
	back := time.Now()
	if _, err = client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v, want a reset", err)
	}
	waited := time.Since(back)
	t.Logf("a client that says nothing was told %.1f s after the gateway came back", waited.Seconds())
	if waited > 15*time.Second {
		t.Errorf("after %s, want the next PING's time, 10 s", waited)
	}
	works(t, l, address)
}
