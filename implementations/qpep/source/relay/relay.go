// Package relay joins a TCP connection to a QUIC stream, so that the two behave as one TCP connection:
//
//	TCP                  QUIC stream (RFC 9000 §3)
//	FIN                  FIN of that direction; the other one goes on
//	RST, time-out        RESET_STREAM and STOP_SENDING. What was read before the RST still arrives (RESET_STREAM_AT), while
//	                     the other end goes on taking it
//	window is full       no more is read from the stream, whose flow control stops the other side
package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"bentpipe/carrier"
)

// Stream error codes: why a side gave a TCP connection up. The original doesn't look at codes.
const (
	Reset       quic.StreamErrorCode = 1 // the TCP connection broke
	Unreachable quic.StreamErrorCode = 2 // the destination could not be reached
	Refused     quic.StreamErrorCode = 3 // the destination refused the connection
	TimedOut    quic.StreamErrorCode = 4 // the destination didn't answer in time
	Forbidden   quic.StreamErrorCode = 5 // the gateway's policy doesn't allow the destination
	Malformed   quic.StreamErrorCode = 6 // no stream header, or a broken one
)

// ErrGone says that the tunnel went, not the TCP connection.
var ErrGone = errors.New("the tunnel is gone")

// errStopped says that the other side reads no more of this direction (STOP_SENDING); the reset of the other direction
// follows, behind what is still to be delivered.
var errStopped = errors.New("the other side stopped reading")

var errStalled = errors.New("the other side reset, and TCP takes nothing of what came before")

// stalled is the time after which an end that takes nothing is asked, or told, whether the connection is still there.
const stalled = time.Second

// Join relays between tcp and stream until both directions have ended, and owns both: they are closed on return. tunnel is
// the context of the stream's QUIC connection, whose end resets the TCP connection at once. The error says how the
// connection broke; nil: both directions ended with a FIN.
func Join(tunnel context.Context, tcp *net.TCPConn, stream *quic.Stream) error {
	j := &joint{tcp: tcp, stream: stream}
	release := context.AfterFunc(tunnel, func() { j.reset() })
	defer release()
	stream.SetReceiveFinalSizeCallback(func(int64) {
		if carrier.WasReset(stream) {
			j.hurry()
		}
	})

	up := make(chan error, 1)
	go func() { up <- j.send() }()
	down := j.receive()
	err := errors.Join(<-up, down)
	if tunnel.Err() != nil {
		err = fmt.Errorf("%w: %w", ErrGone, context.Cause(tunnel))
	}
	if err != nil {
		j.reset()
	}
	_ = tcp.Close()
	return err
}

// Abort gives both up before they were joined: the TCP peer gets a RST, the other side of the stream the code.
func Abort(tcp *net.TCPConn, stream *quic.Stream, code quic.StreamErrorCode) {
	if stream != nil {
		stream.CancelRead(code)
		stream.CancelWrite(code)
	}
	if tcp != nil {
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
	}
}

type joint struct {
	tcp    *net.TCPConn
	stream *quic.Stream
	once   sync.Once
	ending atomic.Bool // the other side has reset its direction, and only its last bytes are to be delivered
}

// hurry is called when a reset is on its way behind bytes that the TCP peer may never take.
func (j *joint) hurry() {
	j.ending.Store(true)
	_ = j.tcp.SetWriteDeadline(time.Now().Add(stalled))
}

// broken is called when the TCP connection broke: it is dead in both directions (RFC 9293 §3.10.7.4), so the stream is too.
func (j *joint) broken() {
	j.once.Do(func() {
		// What was read before the RST is on its way; a reset alone would discard it.
		j.stream.SetReliableBoundary()
		j.stream.CancelWrite(Reset)
		j.stream.CancelRead(Reset)
		_ = j.tcp.Close()
	})
}

// reset is called when the stream broke: the TCP peer gets a RST.
func (j *joint) reset() {
	j.once.Do(func() { Abort(j.tcp, j.stream, Reset) })
}

// send carries TCP → stream. It doesn't end with the FIN, but with the TCP connection, whose late RST it watches for.
func (j *joint) send() error {
	// STOP_SENDING and the tunnel's end cancel this context; nobody else would wake a read of TCP.
	wake := context.AfterFunc(j.stream.Context(), func() { _ = j.tcp.SetReadDeadline(time.Unix(1, 0)) })
	defer wake()
	err := copyFromTCP(j.stream, j.tcp)
	switch {
	case err == nil:
		wake()
		if err := j.stream.Close(); err != nil {
			return err
		}
		if waitForReset(j.tcp) {
			j.broken()
			return errors.New("TCP: reset after FIN")
		}
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, new(*quic.StreamError)):
		j.hurry()
		return errStopped
	case errors.As(err, new(*net.OpError)):
		j.broken()
		return err
	default:
		j.reset()
		return err
	}
}

// receive carries stream → TCP.
func (j *joint) receive() error {
	err := j.copyToTCP()
	switch {
	case err == nil:
		// An error here is that of a connection that broke meanwhile, which send sees as well.
		_ = j.tcp.CloseWrite()
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		j.reset()
		return errStalled
	case errors.As(err, new(*net.OpError)):
		j.broken()
		return err
	default:
		j.reset()
		return err
	}
}

// copyToTCP returns nil at the stream's FIN.
func (j *joint) copyToTCP() error {
	var first [1]byte
	for {
		// No buffer is held while nothing is there: an idle connection costs two stacks. Errors are left to Read, which
		// alone completes the stream.
		_, _ = j.stream.Peek(first[:])
		buffer := buffers.Get().(*[bufferSize]byte)
		n, err := j.stream.Read(buffer[:])
		if n > 0 {
			if j.ending.Load() {
				_ = j.tcp.SetWriteDeadline(time.Now().Add(stalled))
			}
			if _, err := j.tcp.Write(buffer[:n]); err != nil {
				buffers.Put(buffer)
				return err
			}
		}
		buffers.Put(buffer)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// bufferSize is a compromise: QUIC's packets are made from larger writes with fewer switches, 64 KiB is Linux' GSO limit.
const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}
