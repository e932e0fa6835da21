package splice

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/quic-go/quic-go"
)

// receiver and sender are the two directions of a stream. A unidirectional stream has only one of them.
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

// relay carries one direction of a stream: its bytes, then its FIN or RESET_STREAM with its code. In the other direction it carries
// STOP_SENDING with its code. It reads only as much as it can write, so flow control works from end to end.
func relay(out sender, in receiver) {
	// STOP_SENDING ends this context. A sender that sends nothing would not notice it otherwise.
	defer context.AfterFunc(out.Context(), func() { stop(in, context.Cause(out.Context())) })()
	var first [1]byte
	for {
		// While there is no data, no buffer is held. Errors are ignored here, because only Read completes the stream.
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

// stop sends STOP_SENDING for in, if the other side has sent STOP_SENDING.
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
