package harness

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Splitter starts a server behind the middlebox under test. The server calls handle for each TCP connection. The returned
// function opens a connection through the middlebox. After the deadline of its operations the test has failed.
type Splitter func(t testing.TB, handle func(*net.TCPConn)) (connect func() *net.TCPConn)

// Connections tests that a TCP connection through a splitting middlebox behaves as a single TCP connection.
func Connections(t *testing.T, split Splitter) {
	t.Run("bytes arrive both ways", func(t *testing.T) { bytesArriveBothWays(t, split) })
	t.Run("a server that speaks first", func(t *testing.T) { serverThatSpeaksFirst(t, split) })
	t.Run("half-close of the client", func(t *testing.T) { halfCloseOfTheClient(t, split) })
	t.Run("half-close of the server", func(t *testing.T) { halfCloseOfTheServer(t, split) })
	t.Run("reset of the server", func(t *testing.T) { resetOfTheServer(t, split) })
	for _, afterFIN := range []bool{false, true} {
		t.Run(fmt.Sprintf("reset of the client, after FIN %v", afterFIN), func(t *testing.T) { resetOfTheClient(t, split, afterFIN) })
	}
}

func bytesArriveBothWays(t *testing.T, split Splitter) {
	client := split(t, Echo)()
	sent := make([]byte, 5<<20)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = client.Write(sent)
		_ = client.CloseWrite()
	}()
	received, err := io.ReadAll(client)
	Must(t, err)
	if !bytes.Equal(received, sent) {
		t.Errorf("%d bytes came back, not the %d that were sent", len(received), len(sent))
	}
}

func serverThatSpeaksFirst(t *testing.T, split Splitter) {
	client := split(t, func(c *net.TCPConn) { _, _ = c.Write([]byte("220 hello")); Echo(c) })()
	greeting := make([]byte, 9)
	_, err := io.ReadFull(client, greeting)
	if err != nil || string(greeting) != "220 hello" {
		t.Errorf("%q, %v", greeting, err)
	}
}

func halfCloseOfTheClient(t *testing.T, split Splitter) {
	client := split(t, func(c *net.TCPConn) {
		request, _ := io.ReadAll(c)
		time.Sleep(50 * time.Millisecond)
		fmt.Fprintf(c, "%d bytes", len(request))
		_ = c.Close()
	})()
	_, err := client.Write(make([]byte, 1000))
	Must(t, err)
	Must(t, client.CloseWrite())
	answer, err := io.ReadAll(client)
	if err != nil || string(answer) != "1000 bytes" {
		t.Errorf("%q, %v", answer, err)
	}
}

func halfCloseOfTheServer(t *testing.T, split Splitter) {
	got := make(chan string, 1)
	client := split(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("bye"))
		_ = c.CloseWrite()
		rest, _ := io.ReadAll(c)
		got <- string(rest)
	})()
	answer, err := io.ReadAll(client)
	if err != nil || string(answer) != "bye" {
		t.Fatalf("%q, %v", answer, err)
	}
	_, err = client.Write([]byte("still here"))
	Must(t, err)
	Must(t, client.Close())
	select {
	case rest := <-got:
		if rest != "still here" {
			t.Errorf("the server got %q", rest)
		}
	case <-time.After(Patience):
		t.Error("the server still waits")
	}
}

func resetOfTheServer(t *testing.T, split Splitter) {
	client := split(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 1))
		_ = c.SetLinger(0)
		_ = c.Close()
	})()
	_, err := client.Write([]byte("x"))
	Must(t, err)
	if _, err = client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v, want a reset", err)
	}
}

func resetOfTheClient(t *testing.T, split Splitter, afterFIN bool) {
	saw := make(chan error, 1)
	client := split(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("x"))
		_, err := io.Copy(io.Discard, c)
		for err == nil && afterFIN { // a FIN has arrived; only a write detects a RST after it
			time.Sleep(20 * time.Millisecond)
			_, err = c.Write([]byte("y"))
		}
		saw <- err
	})()
	_, err := io.ReadFull(client, make([]byte, 1))
	Must(t, err)
	if afterFIN {
		Must(t, client.CloseWrite())
		time.Sleep(100 * time.Millisecond)
	}
	Must(t, client.SetLinger(0))
	Must(t, client.Close())
	select {
	case err := <-saw:
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("the server saw %v, want a reset", err)
		}
	case <-time.After(Patience):
		t.Error("the server did not notice the reset")
	}
}

// Serve runs a TCP server that calls handle for each connection. It returns the server's address.
func Serve(t testing.TB, handle func(*net.TCPConn)) string {
	t.Helper()
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	Must(t, err)
	Accept(t, listener, handle)
	return listener.Addr().String()
}

// Accept calls handle for each connection of listener, until the test ends.
func Accept(t testing.TB, listener *net.TCPListener, handle func(*net.TCPConn)) {
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.AcceptTCP()
			if err != nil {
				return
			}
			go handle(connection)
		}
	}()
}

// Echo sends all received data back. It ends when the client closes the connection.
func Echo(c *net.TCPConn) {
	_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
	_ = c.Close()
}

// AtOnce opens count connections to an echo server at the same time, each with different bytes. It calls together while all of
// them are open, and then closes them.
func AtOnce(t testing.TB, count int, connect func() *net.TCPConn, together func()) {
	t.Helper()
	clients := make([]*net.TCPConn, count)
	var all sync.WaitGroup
	failures := make(chan error, count)
	for i := range clients {
		clients[i] = connect()
		all.Go(func() {
			sent := bytes.Repeat([]byte{byte(i)}, 10_000)
			if _, err := clients[i].Write(sent); err != nil {
				failures <- err
				return
			}
			received := make([]byte, len(sent))
			if _, err := io.ReadFull(clients[i], received); err != nil || !bytes.Equal(received, sent) {
				failures <- fmt.Errorf("connection %d got something else than it sent: %w", i, err)
			}
		})
	}
	all.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	together()
	for _, client := range clients {
		Must(t, client.Close())
	}
}

// Vanishing opens connections and closes them at once, half of them by a reset.
func Vanishing(t testing.TB, count int, connect func() *net.TCPConn) {
	t.Helper()
	for i := range count {
		client := connect()
		if i%2 == 0 {
			Must(t, client.SetLinger(0))
		}
		Must(t, client.Close())
	}
}

// Busy opens connections to an echo server. They send and receive until they break. The channel returns the error of each.
func Busy(count int, connect func() *net.TCPConn) <-chan error {
	ended := make(chan error, count)
	for range count {
		client := connect()
		go func() {
			time.Sleep(mathrand.N(50 * time.Millisecond))
			wrote := make(chan error)
			go func() {
				for block := make([]byte, 10_000); ; time.Sleep(time.Millisecond) {
					if _, err := client.Write(block); err != nil {
						wrote <- err
						return
					}
				}
			}()
			_, err := io.Copy(io.Discard, client)
			// A RST is reported only once: to the writer or to the reader.
			ended <- errors.Join(err, <-wrote)
		}()
	}
	return ended
}
