package main

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"bentpipe/carrier/harness"
)

func TestConnections(t *testing.T) {
	harness.Connections(t, split)
}

func TestResetOfTheServerArrivesBehindItsData(t *testing.T) {
	const size = 300_000
	client := connect(t, tunnel(t, serve(t, func(c *net.TCPConn) {
		_, _ = c.Write(make([]byte, size))
		// With a RST, the kernel drops data that it hasn't sent yet. The test can only expect data that has reached the gateway.
		time.Sleep(300 * time.Millisecond)
		_ = c.SetLinger(0)
		_ = c.Close()
	})))
	time.Sleep(600 * time.Millisecond)
	received, err := io.Copy(io.Discard, client)
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v, want a reset", err)
	}
	// The RST of the terminal drops data that its kernel had not sent yet; with a client that reads, that is little.
	t.Logf("%d of %d bytes before the reset", received, size)
}

func TestRefusedForbiddenAndUnreachableDestinationsReset(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	refused := closed.Addr().String()
	must(t, closed.Close())
	for name, destination := range map[string]string{"refused": refused, "forbidden": "192.0.2.1:80"} {
		t.Run(name, func(t *testing.T) {
			client, err := net.Dial("tcp", tunnel(t, destination))
			if err == nil { // the reset may come as fast as the handshake
				defer client.Close()
				must(t, client.SetDeadline(time.Now().Add(patience)))
				_, err = client.Read(make([]byte, 1))
			}
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the client saw %v, want a reset", err)
			}
		})
	}
}

func TestClientsAreResetWhenThereIsNoGateway(t *testing.T) {
	p := newMiddlebox(t)
	arguments := p.terminalArguments("127.0.0.1:9", "-stream-timeout", "300ms")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() { ended <- program.Run(ctx, arguments, func(string) string { return "" }, io.Discard) }()
	var client *net.TCPConn
	await(t, "the terminal's listener", func() bool {
		c, err := net.Dial("tcp", p.terminal)
		if err == nil {
			client = c.(*net.TCPConn)
		}
		return err == nil
	})
	must(t, client.SetDeadline(time.Now().Add(patience)))
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v, want a reset", err)
	}
	cancel()
	<-ended
}

func TestSlowReaderHoldsUpItsServerAndNobodyElse(t *testing.T) {
	var written sync.Map
	destination := serve(t, func(c *net.TCPConn) {
		kind := make([]byte, 1)
		if _, err := io.ReadFull(c, kind); err != nil {
			return
		}
		if kind[0] == 'e' {
			echo(c)
			return
		}
		total := 0
		for block := make([]byte, 64<<10); ; {
			n, err := c.Write(block)
			total += n
			written.Store(c, total)
			if err != nil {
				return
			}
		}
	})
	address := tunnel(t, destination)
	const readers = 8
	for range readers {
		_, err := connect(t, address).Write([]byte("s"))
		must(t, err)
	}
	sum := func() (total int) {
		written.Range(func(_, n any) bool { total += n.(int); return true })
		return total
	}
	last := -1
	await(t, "an end of what the servers can write", func() bool {
		defer func() { last = sum() }()
		time.Sleep(500 * time.Millisecond)
		return last > 0 && sum() == last
	})
	// A stream's window, and the socket buffers of two TCP connections (Linux: 4 MiB to send and 6 MiB to receive at most).
	if limit := readers * (2 + 2*10) << 20; sum() > limit {
		t.Errorf("%d bytes went into the tunnel for readers that don't read, want less than %d", sum(), limit)
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	t.Logf("%d MB taken from the servers of %d readers, heap %d MB", sum()>>20, readers, memory.HeapAlloc>>20)
	other := connect(t, address)
	_, err := other.Write([]byte("e!"))
	must(t, err)
	if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
		t.Errorf("another connection is held up: %v", err)
	}
}

func TestThousandConnectionsAtOnce(t *testing.T) {
	connect := split(t, echo)
	before := runtime.NumGoroutine()
	harness.AtOnce(t, 1000, connect, func() {})
	await(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before+10 })
}

func TestShortConnectionsLeaveNothing(t *testing.T) {
	address := tunnel(t, serve(t, echo))
	once := func() {
		client := connect(t, address)
		_, err := client.Write([]byte("hello"))
		must(t, err)
		must(t, client.CloseWrite())
		answer, err := io.ReadAll(client)
		if err != nil || string(answer) != "hello" {
			t.Fatalf("%q, %v", answer, err)
		}
		must(t, client.Close())
	}
	once()
	before := runtime.NumGoroutine()
	for range 500 {
		once()
	}
	await(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before+5 })
}

func TestClientsThatVanishAtOnceLeaveNothing(t *testing.T) {
	connect := split(t, echo)
	before := runtime.NumGoroutine()
	harness.Vanishing(t, 200, connect)
	await(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before+5 })
}
