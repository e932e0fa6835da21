package carrier

import (
	"encoding/binary"
	"net"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// maxDatagram is the largest result of one read of a socket with UDP_GRO: the payload of an IPv4 packet.
const maxDatagram = 65535

// groSocket reads with UDP_GRO (udp(7)): one system call reads a train of datagrams, which come from UDP_SEGMENT on the same host
// or from a network card. quic-go calls ReadBatch when a socket has this method.
type groSocket struct {
	*net.UDPConn
	data    [maxDatagram]byte
	control [128]byte // for quic-go's own messages (ECN, packet info) and UDP_GRO
	train   []byte    // the part of data that was not yet returned
	segment int       // length of a datagram of the train; the last may be shorter
	oob     []byte
	from    *net.UDPAddr
}

// ListenUDP opens a UDP socket for quic.Transport.
func ListenUDP(local *net.UDPAddr) (net.PacketConn, error) {
	socket, err := net.ListenUDP("udp", local)
	if err != nil {
		return nil, err
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	var refused error
	err = raw.Control(func(fd uintptr) { refused = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1) })
	if err != nil || refused != nil { // Linux before 5.0
		return socket, err
	}
	return &groSocket{UDPConn: socket}, nil
}

// ReadBatch returns datagrams until messages is full, or until the train has ended.
func (s *groSocket) ReadBatch(messages []ipv4.Message, _ int) (int, error) {
	if len(s.train) == 0 {
		if err := s.read(); err != nil {
			return 0, err
		}
	}
	n := 0
	for ; n < len(messages); n++ {
		m := &messages[n]
		length := min(s.segment, len(s.train))
		m.N = copy(m.Buffers[0], s.train[:length])
		m.NN = copy(m.OOB, s.oob)
		m.Addr = s.from
		s.train = s.train[length:]
		if len(s.train) == 0 {
			return n + 1, nil
		}
	}
	return n, nil
}

func (s *groSocket) read() error {
	n, oobn, _, from, err := s.ReadMsgUDP(s.data[:], s.control[:])
	if err != nil {
		return err
	}
	s.train, s.segment, s.from = s.data[:n], n, from
	s.oob = s.control[:oobn]
	for rest := s.oob; len(rest) > 0; {
		header, body, remainder, err := unix.ParseOneSocketControlMessage(rest)
		if err != nil {
			return err
		}
		if header.Level == unix.IPPROTO_UDP && header.Type == unix.UDP_GRO && len(body) >= 4 {
			s.segment = max(1, int(binary.NativeEndian.Uint32(body)))
		}
		rest = remainder
	}
	return nil
}
