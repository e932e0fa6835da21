package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bentpipe/carrier/harness"
)

// The tests run both sides like the command, over loopback, with an explicit destination instead of TPROXY.

// commandVariable makes the test binary behave as the command itself, for the sides that tests kill.
const commandVariable = "QPEP_TEST_COMMAND"

func TestMain(m *testing.M) {
	if arguments := os.Getenv(commandVariable); arguments != "" {
		os.Exit(program.Run(context.Background(), strings.Split(arguments, "\n"), func(string) string { return "" }, os.Stderr))
	}
	os.Exit(m.Run())
}

const patience = harness.Patience

var must, await, awaitFile, keys, serve, echo = harness.Must, harness.Await, harness.AwaitFile, harness.Keys, harness.Serve, harness.Echo

// middlebox is a terminal and a gateway in front of one destination.
type middlebox struct {
	keys     string
	gateway  string // UDP
	terminal string // TCP
}

func newMiddlebox(t testing.TB) *middlebox {
	t.Helper()
	return &middlebox{keys: keys(t), gateway: harness.Address(), terminal: harness.Address()}
}

// Every side has an idle time-out that a test can wait for.
func (p *middlebox) gatewayArguments(extra ...string) []string {
	return append([]string{"gateway", "-listen", p.gateway, "-allow", "127.0.0.0/8", "-idle-timeout", "6s", "-keep-alive", "2s",
		"-ca", p.keys + "/ca.pem", "-certificate", p.keys + "/gateway.pem", "-key", p.keys + "/gateway.key"}, extra...)
}

func (p *middlebox) terminalArguments(destination string, extra ...string) []string {
	return append([]string{"terminal", "-gateway", p.gateway, "-listen", p.terminal, "-destination", destination, "-idle-timeout", "6s",
		"-keep-alive", "2s", "-ca", p.keys + "/ca.pem", "-certificate", p.keys + "/terminal.pem", "-key", p.keys + "/terminal.key"}, extra...)
}

func start(t testing.TB, arguments []string) (stop func()) {
	return harness.Start(t, program, arguments)
}

// spawn runs a side as a separate process, which the test may kill.
func spawn(t testing.TB, arguments []string) *exec.Cmd {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	self, err := os.Executable()
	must(t, err)
	side := exec.Command(self)
	side.Stderr = os.Stderr
	side.Env = append(os.Environ(), commandVariable+"="+strings.Join(append(arguments, "-ready", ready), "\n"))
	must(t, side.Start())
	t.Cleanup(func() { _ = side.Process.Kill(); _ = side.Wait() })
	awaitFile(t, ready)
	return side
}

func connect(t testing.TB, address string) *net.TCPConn {
	t.Helper()
	connection, err := net.DialTimeout("tcp", address, patience)
	must(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	must(t, connection.SetDeadline(time.Now().Add(patience)))
	return connection.(*net.TCPConn)
}

// tunnel starts both sides in front of destination and returns where clients connect to.
func tunnel(t testing.TB, destination string) string {
	t.Helper()
	p := newMiddlebox(t)
	start(t, p.gatewayArguments())
	start(t, p.terminalArguments(destination))
	return p.terminal
}

// split is tunnel in the form that the tests of all middleboxes use.
func split(t testing.TB, handle func(*net.TCPConn)) func() *net.TCPConn {
	t.Helper()
	address := tunnel(t, serve(t, handle))
	return func() *net.TCPConn { return connect(t, address) }
}
