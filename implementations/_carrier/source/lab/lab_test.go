// Package lab tests the image of a middlebox that splits TCP connections as a lane runs it: /run_box.sh in both boxes, TPROXY,
// real links between namespaces. runner/tests/crossing/test_split_connections.py runs it in that image.
package lab

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bentpipe/carrier/harness"
)

// patience is longer than the 30 s after which a tunnel times out.
const patience = 45 * time.Second

var must = harness.Must

func TestMain(m *testing.M) {
	if _, err := os.Stat("/run_box.sh"); err != nil {
		fmt.Println("no image of a middlebox: nothing to test")
		return
	}
	for _, folder := range []string{"/keys", "/logs"} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// wiring builds the network of the contract (implementations/_middlebox) with the namespaces $1-client … $1-server.
const wiring = `set -eu
for side in client terminal gateway server; do ip netns add "$1-$side"; ip -n "$1-$side" link set lo up; done
link() { # SIDE DEVICE ADDRESS ADDRESS6  SIDE DEVICE ADDRESS ADDRESS6
    ip -n "$1" link add "$2" type veth peer name "$6" netns "$5"
    for end in "$1 $2 $3 $4" "$5 $6 $7 $8"; do
        set -- $end
        ip -n "$1" addr add "$3" dev "$2"
        ip -n "$1" addr add "$4" dev "$2" nodad
        ip -n "$1" link set "$2" up
    done
}
link "$1-client" eth0 193.167.0.100/24 fd00:1::100/64 "$1-terminal" lan0 193.167.0.1/24 fd00:1::1/64
link "$1-terminal" sat0 10.55.0.100/16 fd00:55::1/64 "$1-gateway" sat0 10.55.100.100/16 fd00:55::2/64
link "$1-gateway" wan0 193.167.100.1/24 fd00:2::1/64 "$1-server" eth0 193.167.100.100/24 fd00:2::100/64
ip -n "$1-client" route add default via 193.167.0.1
ip -n "$1-client" route add default via fd00:1::1
ip -n "$1-terminal" route add 193.167.100.0/24 via 10.55.100.100
ip -n "$1-terminal" route add fd00:2::/64 via fd00:55::2
`

const (
	server4 = "193.167.100.100"
	server6 = "fd00:2::100"
)

// startSide removes the rules of an earlier start first, because the namespace of a container would be new.
const startSide = `nft flush ruleset
for family in -4 -6; do ip $family rule del fwmark 1; ip $family route flush table 100; done 2>/dev/null
mount --bind "$1" /keys && mount --bind "$2" /logs && exec /run_box.sh`

var labs atomic.Int64

// lab is one client, terminal, gateway and server.
type lab struct {
	name    string // prefix of the namespaces
	keys    string
	options []string // variables for both sides
	sides   map[string]*exec.Cmd
}

// newLab starts both sides; options are variables of the contract of middleboxes.
func newLab(t testing.TB, options ...string) *lab {
	t.Helper()
	l := &lab{name: "lab" + strconv.FormatInt(labs.Add(1), 10), keys: harness.Keys(t), options: options, sides: map[string]*exec.Cmd{}}
	if output, err := exec.Command("sh", "-c", wiring, "wiring", l.name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	l.start(t, "gateway")
	l.start(t, "terminal")
	return l
}

// start runs a side until the test ends, or kills it.
func (l *lab) start(t testing.TB, side string) {
	t.Helper()
	logs := t.TempDir()
	command := exec.Command("ip", "netns", "exec", l.name+"-"+side, "sh", "-c", startSide, side, l.keys, logs)
	command.Env = append(os.Environ(), "ROLE="+side, "TERMINAL_ADDRESS=10.55.0.100", "TERMINAL_ADDRESS6=fd00:55::1",
		"GATEWAY_ADDRESS=10.55.100.100", "GATEWAY_ADDRESS6=fd00:55::2", "CLIENT_NETWORK=193.167.0.0/24", "CLIENT_NETWORK6=fd00:1::/64",
		"SERVER_NETWORK=193.167.100.0/24", "SERVER_NETWORK6=fd00:2::/64")
	command.Env = append(command.Env, l.options...)
	output, err := os.Create(filepath.Join(logs, "output.log"))
	must(t, err)
	defer output.Close()
	command.Stdout, command.Stderr = output, output
	must(t, command.Start())
	l.sides[side] = command
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if printed, _ := os.ReadFile(output.Name()); t.Failed() {
			t.Logf("%s printed:\n%.3000s", side, printed)
		}
	})
	harness.AwaitFile(t, filepath.Join(logs, "ready"))
}

func (l *lab) kill(t testing.TB, side string) {
	t.Helper()
	must(t, l.sides[side].Process.Kill())
	_ = l.sides[side].Wait()
}

// within runs do in the namespace of a side. A socket stays in the namespace in which it was created.
func (l *lab) within(t testing.TB, side string, do func()) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this function
		namespace, err := os.Open("/run/netns/" + l.name + "-" + side)
		if err == nil {
			defer namespace.Close()
			err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			do()
		}
		failed <- err
	}()
	must(t, <-failed)
}

// serve runs a server behind the gateway.
func (l *lab) serve(t testing.TB, host string, handle func(*net.TCPConn)) (address string) {
	t.Helper()
	var listener *net.TCPListener
	var err error
	l.within(t, "server", func() { listener, err = net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(host)}) })
	must(t, err)
	harness.Accept(t, listener, handle)
	return listener.Addr().String()
}

func (l *lab) dial(t testing.TB, address string) (client *net.TCPConn, err error) {
	t.Helper()
	destination, err := net.ResolveTCPAddr("tcp", address)
	must(t, err)
	l.within(t, "client", func() { client, err = net.DialTCP("tcp", nil, destination) })
	if err == nil {
		t.Cleanup(func() { _ = client.Close() })
		err = client.SetDeadline(time.Now().Add(patience))
	}
	return client, err
}

// split is a harness.Splitter over IPv4.
func (l *lab) split(t testing.TB, handle func(*net.TCPConn)) func() *net.TCPConn {
	t.Helper()
	return l.to(t, l.serve(t, server4, handle))
}

func (l *lab) to(t testing.TB, address string) func() *net.TCPConn {
	return func() *net.TCPConn {
		t.Helper()
		client, err := l.dial(t, address)
		must(t, err)
		return client
	}
}

// descriptors is the number of open file descriptors of a side.
func (l *lab) descriptors(t testing.TB, side string) int {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", l.sides[side].Process.Pid))
	must(t, err)
	return len(open)
}

// memory is the largest resident memory of a side so far, in bytes.
func (l *lab) memory(t testing.TB, side string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.sides[side].Process.Pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kilobytes, err := strconv.Atoi(strings.Fields(rest)[0])
	must(t, err)
	return kilobytes << 10
}

// asBefore is called before the tested operation. The result waits until each side has as many descriptors as before.
func (l *lab) asBefore(t testing.TB, sides ...string) (await func()) {
	t.Helper()
	before := map[string]int{}
	for _, side := range sides {
		before[side] = l.descriptors(t, side)
	}
	return func() {
		t.Helper()
		for _, side := range sides {
			harness.Await(t, fmt.Sprintf("the %s with %d descriptors again", side, before[side]), func() bool {
				return l.descriptors(t, side) <= before[side]
			})
		}
	}
}

// pendingError is the error of a connection (SO_ERROR) that neither reads nor writes.
func pendingError(t testing.TB, c *net.TCPConn) (pending error) {
	t.Helper()
	raw, err := c.SyscallConn()
	must(t, err)
	err = raw.Control(func(fd uintptr) {
		if code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err != nil {
			pending = err
		} else if code != 0 {
			pending = unix.Errno(code)
		}
	})
	return errors.Join(pending, err)
}
