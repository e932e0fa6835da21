package carrier

import (
	"bytes"
	"net"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// control sets a socket option.
func control(t *testing.T, socket *net.UDPConn, level, option, value int) {
	t.Helper()
	raw, err := socket.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), level, option, value); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// marked says whether a control message has the ECN bits that the sender set.
func marked(control []byte) bool {
	for len(control) > 0 {
		header, body, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return false
		}
		if header.Level == unix.IPPROTO_IP && header.Type == unix.IP_TOS {
			return body[0] == 1
		}
		control = rest
	}
	return false
}

// A train of five different datagrams is read as five datagrams, in batches smaller than the train. Single datagrams
// after it are read unchanged.
func TestTrainIsReadAsItsDatagrams(t *testing.T) {
	opened, err := ListenUDP(&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	socket, ok := opened.(*groSocket)
	if !ok {
		t.Fatal("this kernel has no UDP_GRO")
	}
	control(t, socket.UDPConn, unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	sender, err := net.DialUDP("udp", nil, opened.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	control(t, sender, unix.IPPROTO_IP, unix.IP_TOS, 1)
	control(t, sender, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1000)
	var train []byte
	for i := range 5 {
		train = append(train, bytes.Repeat([]byte{byte(i)}, 1000)...)
	}
	for _, sent := range [][]byte{train[:4500], []byte("alone"), nil} {
		if _, err := sender.Write(sent); err != nil {
			t.Fatal(err)
		}
	}
	_ = opened.SetReadDeadline(time.Now().Add(10 * time.Second))
	want := []int{3, 2, 1, 1} // datagrams that each call returns
	lengths := []int{1000, 1000, 1000, 1000, 500, 5, 0}
	for call, count := range want {
		messages := make([]ipv4.Message, 3)
		for i := range messages {
			messages[i] = ipv4.Message{Buffers: [][]byte{make([]byte, 1452)}, OOB: make([]byte, 128)}
		}
		n, err := socket.ReadBatch(messages, 0)
		if err != nil || n != count {
			t.Fatalf("call %d gave %d datagrams and %v, want %d", call, n, err, count)
		}
		for _, m := range messages[:n] {
			number := 7 - len(lengths)
			if m.N != lengths[0] || number < 5 && !bytes.Equal(m.Buffers[0][:m.N], train[number*1000:number*1000+m.N]) {
				t.Errorf("datagram %d has %d bytes, or others than were sent", number, m.N)
			}
			if m.Addr.String() != sender.LocalAddr().String() {
				t.Errorf("datagram %d is from %s", number, m.Addr)
			}
			if !marked(m.OOB[:m.NN]) {
				t.Errorf("datagram %d has lost its ECN bits", number)
			}
			lengths = lengths[1:]
		}
	}
}
