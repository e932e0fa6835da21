package relay

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"
)

// copyFromTCP returns nil at the FIN, a *net.OpError when the TCP connection broke, and otherwise the error of the stream.
func copyFromTCP(stream *quic.Stream, tcp *net.TCPConn) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var (
		buffer *[bufferSize]byte
		n      int
		failed error
	)
	// This function is called when the socket may be readable. Only then it takes a buffer, which it keeps only if data was read.
	read := func(fd uintptr) bool {
		buffer = buffers.Get().(*[bufferSize]byte)
		for {
			n, failed = syscall.Read(int(fd), buffer[:])
			if !errors.Is(failed, syscall.EINTR) {
				break
			}
		}
		if errors.Is(failed, syscall.EAGAIN) {
			buffers.Put(buffer)
			return false
		}
		return true
	}
	for {
		if err := raw.Read(read); err != nil {
			return err
		}
		if failed == nil && n > 0 {
			failed = write(stream, raw, buffer[:n])
			buffers.Put(buffer)
			if failed != nil {
				return failed
			}
			continue
		}
		buffers.Put(buffer)
		if failed != nil {
			return &net.OpError{Op: "read", Net: "tcp", Source: tcp.LocalAddr(), Addr: tcp.RemoteAddr(), Err: os.NewSyscallError("read", failed)}
		}
		return nil
	}
}

// write writes data to the stream. It also ends when the TCP connection breaks, with a *net.OpError: while flow control stops the
// stream, the socket is not read.
func write(stream *quic.Stream, raw syscall.RawConn, data []byte) error {
	for {
		_ = stream.SetWriteDeadline(time.Now().Add(stalled))
		n, err := stream.Write(data)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		data = data[n:]
		var failure syscall.Errno
		if err := raw.Control(func(fd uintptr) { _, failure = ended(fd) }); err != nil {
			return err
		}
		if failure != 0 {
			return &net.OpError{Op: "read", Net: "tcp", Err: failure}
		}
	}
}

// waitForReset waits, after the FIN of the peer, until the connection has ended. It returns true when the peer reset the
// connection or became silent, and false when both sides or we closed it.
func waitForReset(tcp *net.TCPConn) bool {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	var failure syscall.Errno
	err = raw.Read(func(fd uintptr) (over bool) {
		over, failure = ended(fd)
		return over
	})
	return err == nil && failure != 0
}

// ended reports whether a TCP connection has ended, and the error that ended it.
func ended(fd uintptr) (over bool, failure syscall.Errno) {
	info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return true, 0
	}
	if info.State != unix.BPF_TCP_CLOSE {
		return false, 0
	}
	code, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	return true, syscall.Errno(code)
}
