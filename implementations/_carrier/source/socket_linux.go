package carrier

import (
	"encoding/binary"
	"net"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// maxDatagram is what one read of a socket with UDP_GRO gives at most: the payload of an IPv4 packet.
const maxDatagram = 65535

// groSocket reads with UDP_GRO (udp(7)): what came as one train, from UDP_SEGMENT on the same host or from a network card,
// is one system call in place of one per datagram. quic-go reads by ReadBatch where a socket has it.
type groSocket struct {
	*net.UDPConn
	data    [maxDatagram]byte
	control [128]byte // of quic-go's own messages (ECN, packet info), and UDP_GRO
	train   []byte    // what of data hasn't been handed out
	segment int       // length of the train's datagrams; the last may be shorter
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

// ReadBatch hands out datagrams until messages are full, or nothing of the train is left.
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
