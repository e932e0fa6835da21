package main

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// FuzzTCP lets both TCP peers run a script of bytes. The received data is always a prefix of the sent data, and all of it
// where both peers ended with a FIN. Neither peer hangs.
func FuzzTCP(f *testing.F) {
	for _, seed := range [][2]string{
		{"", ""}, {"wf", "rwf"}, {"wwx", "rw"}, {"f", "wpwf"}, {"wc", "rWc"}, {"WWf", "pprf"}, {"rf", "Wx"}, {"WWWW", "WWWW"},
		{"x", "x"}, {"c", "W"}, {"Wppx", "ppr"}, {"fpx", "rpw"}, {"rw", "rrw"},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	scripts, results := make(chan []byte, 1), make(chan peer, 1)
	address := tunnel(f, serve(f, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("!"))
		results <- act(c, <-scripts, 2)
	}))
	f.Fuzz(func(t *testing.T, ofClient, ofServer []byte) {
		if len(ofClient) > 20 || len(ofServer) > 20 {
			return
		}
		connection, err := net.Dial("tcp", address)
		must(t, err)
		// The server never sees a client that leaves before the gateway has connected, and a server that resets at once may
		// be as fast as the handshake; those are other tests.
		_, err = io.ReadFull(connection, make([]byte, 1))
		must(t, err)
		scripts <- ofServer
		client := act(connection.(*net.TCPConn), ofClient, 1)
		var server peer
		select {
		case server = <-results:
		case <-time.After(patience):
			t.Fatal("the server is stuck")
		}
		client.check(t, "client → server", server)
		server.check(t, "server → client", client)
	})
}

// peer records what one end of a TCP connection sent and received.
type peer struct {
	sent, received int
	corrupt        bool
	gentle         bool  // it ended with a FIN, and read to the end
	err            error // of the first call that failed
}

func (p *peer) check(t *testing.T, direction string, receiver peer) {
	t.Helper()
	if receiver.corrupt || receiver.received > p.sent {
		t.Errorf("%s: %d bytes were sent, %d others arrived", direction, p.sent, receiver.received)
	}
	if !p.gentle || !receiver.gentle {
		return
	}
	if receiver.received != p.sent || p.err != nil || receiver.err != nil {
		t.Errorf("%s: %d of %d bytes arrived (%v, %v), though both ended with a FIN", direction, receiver.received, p.sent, p.err, receiver.err)
	}
}

// act runs the script, byte by byte. An unknown byte is a write of that many bytes. Then it sends a FIN and reads to the end.
func act(c *net.TCPConn, script []byte, seed byte) (p peer) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	for _, step := range script {
		if p.err != nil {
			break
		}
		switch step {
		case 'f':
			p.note(c.CloseWrite())
		case 'c':
			return p
		case 'x':
			_ = c.SetLinger(0)
			return p
		case 'p':
			time.Sleep(3 * time.Millisecond)
		case 'r':
			p.tryRead(c, seed^3)
		case 'W':
			p.write(c, 100_000, seed)
		default:
			p.write(c, int(step), seed)
		}
	}
	if err := c.CloseWrite(); err != nil && p.err == nil {
		p.note(err)
	}
	for buffer := make([]byte, 64<<10); p.err == nil; {
		if p.read(c, buffer, seed^3) {
			p.gentle = true
			return p
		}
	}
	return p
}

func (p *peer) note(err error) {
	if p.err == nil {
		p.err = err
	}
}

// pattern is byte number n of the data of the peer with that seed.
func pattern(n int, seed byte) byte { return byte(n>>8)*31 + byte(n)*7 + seed }

func (p *peer) write(c *net.TCPConn, size int, seed byte) {
	block := make([]byte, size)
	for i := range block {
		block[i] = pattern(p.sent+i, seed)
	}
	n, err := c.Write(block)
	p.sent += n
	p.note(err)
}

// tryRead reads with a short time-out, because the other end may be reading, too.
func (p *peer) tryRead(c *net.TCPConn, seed byte) {
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	p.read(c, make([]byte, 5000), seed)
	if errors.Is(p.err, os.ErrDeadlineExceeded) {
		p.err = nil
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
}

// read returns whether the FIN has arrived.
func (p *peer) read(c *net.TCPConn, buffer []byte, seed byte) bool {
	n, err := c.Read(buffer)
	for i := range n {
		p.corrupt = p.corrupt || buffer[i] != pattern(p.received+i, seed)
	}
	p.received += n
	if errors.Is(err, io.EOF) {
		return true
	}
	p.note(err)
	return false
}
