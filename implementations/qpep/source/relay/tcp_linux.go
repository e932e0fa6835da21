package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// copyFromTCP returns nil at the FIN, a *net.OpError when TCP broke, the writer's error otherwise.
func copyFromTCP(w io.Writer, tcp *net.TCPConn) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var (
		buffer *[bufferSize]byte
		n      int
		failed error
	)
	// It is called when the socket may be readable; a buffer is taken only then, and kept only if something came.
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
			_, failed = w.Write(buffer[:n])
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

// waitForReset waits, after the FIN of the peer, until the connection has ended: true if the peer reset it, or went
// silent; false if both sides closed it, or we did.
func waitForReset(tcp *net.TCPConn) bool {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	var failure int
	err = raw.Read(func(fd uintptr) bool {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return true
		}
		if info.State != unix.BPF_TCP_CLOSE {
			return false
		}
		failure, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		return true
	})
	return err == nil && failure != 0
}
