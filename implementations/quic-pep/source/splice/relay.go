package splice

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/quic-go/quic-go"
)

// receiver and sender are the halves of a stream, or the whole of a unidirectional one.
type receiver interface {
	io.Reader
	Peek([]byte) (int, error)
	CancelRead(quic.StreamErrorCode)
}

type sender interface {
	io.WriteCloser
	CancelWrite(quic.StreamErrorCode)
	Context() context.Context
}

var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// relay carries one direction of a stream: bytes, then its end as it came, FIN or RESET_STREAM with its code; and back
// comes STOP_SENDING with its code. It reads no more than it could write, so flow control reaches from end to end.
func relay(out sender, in receiver) {
	// STOP_SENDING ends the context; nobody else would tell a sender that is silent.
	defer context.AfterFunc(out.Context(), func() { stop(in, context.Cause(out.Context())) })()
	var first [1]byte
	for {
		// No buffer is held while nothing is there. Errors are left to Read, which alone completes the stream.
		_, _ = in.Peek(first[:])
		buffer := buffers.Get().(*[32 << 10]byte)
		n, err := in.Read(buffer[:])
		if n > 0 {
			if _, err := out.Write(buffer[:n]); err != nil {
				buffers.Put(buffer)
				stop(in, err)
				return
			}
		}
		buffers.Put(buffer)
		if err != nil {
			end(out, err)
			return
		}
	}
}

// stop asks the sender of in to stop, if the reader of the other side asked for it.
func stop(in receiver, reason error) {
	var stopped *quic.StreamError
	if errors.As(reason, &stopped) && stopped.Remote {
		in.CancelRead(stopped.ErrorCode)
	}
}

func end(out sender, reason error) {
	var reset *quic.StreamError
	switch {
	case errors.Is(reason, io.EOF):
		_ = out.Close()
	case errors.As(reason, &reset) && reset.Remote:
		out.CancelWrite(reset.ErrorCode)
	}
}
