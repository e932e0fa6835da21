package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bentpipe/carrier"
	"bentpipe/carrier/harness"
)

// When a side is killed, at any moment, the client and the server notice it within the idle time-out, and new connections
// work as soon as the side is restarted.
func TestKillingEitherSideLeavesNothingStuck(t *testing.T) {
	for _, which := range []string{"gateway", "terminal"} {
		for _, after := range []time.Duration{0, 3 * time.Millisecond, 40 * time.Millisecond, 300 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s after %s", which, after), func(t *testing.T) { t.Parallel(); kill(t, which, after) })
		}
	}
}

func kill(t *testing.T, which string, after time.Duration) {
	var serving atomic.Int64
	destination := serve(t, func(c *net.TCPConn) {
		serving.Add(1)
		defer serving.Add(-1)
		echo(c)
	})
	p := newMiddlebox(t)
	sides := map[string]func() *exec.Cmd{
		"gateway":  func() *exec.Cmd { return spawn(t, p.gatewayArguments()) },
		"terminal": func() *exec.Cmd { return spawn(t, p.terminalArguments(destination)) },
	}
	running := map[string]*exec.Cmd{"gateway": sides["gateway"](), "terminal": nil}
	running["terminal"] = sides["terminal"]()

	ended := harness.Busy(20, func() *net.TCPConn { return connect(t, p.terminal) })
	time.Sleep(after)
	victim := running[which]
	_ = victim.Process.Kill()
	_ = victim.Wait()
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
	sides[which]()
	await(t, "the end of the servers' connections", func() bool { return serving.Load() == 0 })
	await(t, "a connection that works", func() bool {
		client, err := net.Dial("tcp", p.terminal)
		if err != nil {
			return false
		}
		defer client.Close()
		_ = client.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := client.Write([]byte("x")); err != nil {
			return false
		}
		_, err = io.ReadFull(client, make([]byte, 1))
		return err == nil
	})
}

// A restarted gateway answers the next packet of its terminals with a stateless reset, so that no terminal waits for the
// idle time-out.
func TestRestartedGatewayTellsItsTerminals(t *testing.T) {
	t.Run("in path MTU discovery", func(t *testing.T) { restart(t, 0) })
	// All packets are acknowledged and no probe is pending, so that the next packet is the PING, of 25 bytes.
	t.Run("quiet", func(t *testing.T) {
		if !carrier.Tuned {
			t.Skip("quic-go as released answers no packet of less than 43 bytes")
		}
		restart(t, 300*time.Millisecond, "-packet-size", "1280")
	})
}

// restart kills the gateway after a time without traffic; options are flags of the terminal.
func restart(t *testing.T, after time.Duration, options ...string) {
	p := newMiddlebox(t)
	gateway := spawn(t, p.gatewayArguments())
	start(t, p.terminalArguments(serve(t, echo), append(options, "-keep-alive", "500ms")...))
	client := connect(t, p.terminal)
	_, err := client.Write([]byte("x"))
	must(t, err)
	_, err = io.ReadFull(client, make([]byte, 1))
	must(t, err)

	time.Sleep(after)
	must(t, gateway.Process.Kill())
	_ = gateway.Wait()
	spawn(t, p.gatewayArguments())
	back := time.Now()
	_, err = client.Read(make([]byte, 1))
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v, want a reset", err)
	}
	if waited := time.Since(back); waited > 3*time.Second {
		t.Errorf("the client was told after %s, want less than the idle time-out of 6 s", waited)
	}
}
