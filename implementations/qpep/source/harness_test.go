package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// The tests run both sides as the command does, over loopback, with an explicit destination in place of TPROXY.

// commandVariable makes the test binary behave as the command itself, for the sides that tests kill.
const commandVariable = "QPEP_TEST_COMMAND"

func TestMain(m *testing.M) {
	if arguments := os.Getenv(commandVariable); arguments != "" {
		os.Exit(program.Run(context.Background(), strings.Split(arguments, "\n"), func(string) string { return "" }, os.Stderr))
	}
	os.Exit(m.Run())
}

const patience = 20 * time.Second

// keys makes a folder as the runner's /keys: ca.pem, gateway.pem, gateway.key, terminal.pem, terminal.key.
func keys(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	ca, caKey := certificate(t, folder, "ca", nil, nil)
	certificate(t, folder, "gateway", ca, caKey)
	certificate(t, folder, "terminal", ca, caKey)
	return folder
}

func certificate(t testing.TB, folder, name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: parent == nil,
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(filepath.Join(folder, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	parsed, err := x509.ParseCertificate(der)
	must(t, err)
	return parsed, key
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// path is a terminal and a gateway with one destination behind them.
type path struct {
	keys     string
	gateway  string // UDP
	terminal string // TCP
}

func newPath(t testing.TB) *path {
	t.Helper()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	defer udp.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer tcp.Close()
	return &path{keys: keys(t), gateway: udp.LocalAddr().String(), terminal: tcp.Addr().String()}
}

// Every side has an idle time-out that a test can wait for.
func (p *path) gatewayArguments(extra ...string) []string {
	return append([]string{"gateway", "-listen", p.gateway, "-allow", "127.0.0.0/8", "-idle-timeout", "6s", "-keep-alive", "2s",
		"-ca", p.keys + "/ca.pem", "-certificate", p.keys + "/gateway.pem", "-key", p.keys + "/gateway.key"}, extra...)
}

func (p *path) terminalArguments(destination string, extra ...string) []string {
	return append([]string{"terminal", "-gateway", p.gateway, "-listen", p.terminal, "-destination", destination, "-idle-timeout", "6s",
		"-keep-alive", "2s", "-ca", p.keys + "/ca.pem", "-certificate", p.keys + "/terminal.pem", "-key", p.keys + "/terminal.key"}, extra...)
}

// start runs a side within the test's process, until the test ends or the function that it returns is called.
func start(t testing.TB, arguments []string) (stop func()) {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		ended <- program.Run(ctx, append(arguments, "-ready", ready), func(string) string { return "" }, &stderr)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case code := <-ended:
			if code != 0 {
				t.Errorf("%s ended with %d: %s", arguments[0], code, stderr.String())
			}
		case <-time.After(2 * time.Second):
			t.Errorf("%s hasn't ended 2 s after it was told to", arguments[0])
		}
	})
	t.Cleanup(stop)
	awaitFile(t, ready)
	return stop
}

func awaitFile(t testing.TB, name string) {
	t.Helper()
	await(t, "the ready file", func() bool { _, err := os.Stat(name); return err == nil })
}

func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s hasn't come within %s", what, patience)
		}
	}
}

// spawn runs a side as a process of its own, which the test may kill.
func spawn(t testing.TB, arguments []string) *exec.Cmd {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	self, err := os.Executable()
	must(t, err)
	side := exec.Command(self)
	side.Env = append(os.Environ(), commandVariable+"="+strings.Join(append(arguments, "-ready", ready), "\n"))
	must(t, side.Start())
	t.Cleanup(func() { _ = side.Process.Kill(); _ = side.Wait() })
	awaitFile(t, ready)
	return side
}

// serve runs a TCP server that hands every connection to handle.
func serve(t testing.TB, handle func(*net.TCPConn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go handle(connection.(*net.TCPConn))
		}
	}()
	return listener.Addr().String()
}

func echo(c *net.TCPConn) {
	_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
	_ = c.Close()
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
	p := newPath(t)
	start(t, p.gatewayArguments())
	start(t, p.terminalArguments(destination))
	return p.terminal
}
