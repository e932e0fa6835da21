// Package relay joins a TCP connection and a QUIC stream, so that they behave as one TCP connection:
//
//	TCP                  QUIC stream (RFC 9000 §3)
//	FIN                  FIN of that direction; the other direction continues
//	RST, time-out        RESET_STREAM and STOP_SENDING. Data that was read before the RST still arrives (RESET_STREAM_AT), as
//	                     long as the other end reads
//	window is full       nothing is read from the stream, and its flow control stops the other side
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

// Stream error codes: the reason why a side aborted a TCP connection. The original ignores the codes.
const (
	Reset       quic.StreamErrorCode = 1 // the TCP connection broke
	Unreachable quic.StreamErrorCode = 2 // the destination could not be reached
	Refused     quic.StreamErrorCode = 3 // the destination refused the connection
	TimedOut    quic.StreamErrorCode = 4 // the destination didn't answer in time
	Forbidden   quic.StreamErrorCode = 5 // the gateway's policy doesn't allow the destination
	Malformed   quic.StreamErrorCode = 6 // no valid stream header
)

// ErrGone is the error when the tunnel ended, not the TCP connection.
var ErrGone = errors.New("the tunnel is gone")

// errStopped is the error when the other side no longer reads this direction (STOP_SENDING). The reset of the other direction
// follows after the data that must still be delivered.
var errStopped = errors.New("the other side stopped reading")

var errStalled = errors.New("the other side reset, and TCP takes nothing of what came before")

// stalled is the time after which a connection whose end takes no data is checked or reset.
const stalled = time.Second

// Join relays between tcp and stream until both directions have ended. It closes both. tunnel is the context of the stream's QUIC
// connection: when this connection ends, the TCP connection is reset at once. The error is the reason why the connection broke;
// nil: both directions ended with a FIN.
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

// Abort ends tcp and stream before they were joined: the TCP peer gets a RST, and the other side of the stream gets the code.
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
	ending atomic.Bool // the other side has reset its direction; only its last bytes must still be delivered
}

// hurry is called when a reset waits behind bytes that the TCP peer may never read.
func (j *joint) hurry() {
	j.ending.Store(true)
	_ = j.tcp.SetWriteDeadline(time.Now().Add(stalled))
}

// broken is called when the TCP connection broke. It is then dead in both directions (RFC 9293 §3.10.7.4), so the stream ends, too.
func (j *joint) broken() {
	j.once.Do(func() {
		// Data that was read before the RST is in flight. A reset without this boundary would discard it.
		j.stream.SetReliableBoundary()
		j.stream.CancelWrite(Reset)
		j.stream.CancelRead(Reset)
		_ = j.tcp.Close()
	})
}

// reset is called when the stream broke. The TCP peer gets a RST.
func (j *joint) reset() {
	j.once.Do(func() { Abort(j.tcp, j.stream, Reset) })
}

// send copies from TCP to the stream. It ends not with the FIN but with the TCP connection, because a RST may follow the FIN.
func (j *joint) send() error {
	// STOP_SENDING and the end of the tunnel cancel this context. A read of TCP would not notice them.
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

// receive copies from the stream to TCP.
func (j *joint) receive() error {
	err := j.copyToTCP()
	switch {
	case err == nil:
		// An error here means that the connection broke. send notices this, too.
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
		// While there is no data, no buffer is held: an idle connection needs only two stacks. Errors are ignored here,
		// because only Read completes the stream.
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

// bufferSize is a compromise: with larger writes QUIC needs fewer thread switches; 64 KiB is Linux' limit for GSO.
const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}
