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
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
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

func TestBytesArriveBothWays(t *testing.T) {
	client := connect(t, tunnel(t, serve(t, echo)))
	sent := make([]byte, 5<<20)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = client.Write(sent)
		_ = client.CloseWrite()
	}()
	received, err := io.ReadAll(client)
	must(t, err)
	if !bytes.Equal(received, sent) {
		t.Errorf("%d bytes came back, not the %d that were sent", len(received), len(sent))
	}
}

func TestServerThatSpeaksFirst(t *testing.T) {
	client := connect(t, tunnel(t, serve(t, func(c *net.TCPConn) { _, _ = c.Write([]byte("220 hello")); echo(c) })))
	greeting := make([]byte, 9)
	_, err := io.ReadFull(client, greeting)
	if err != nil || string(greeting) != "220 hello" {
		t.Errorf("%q, %v", greeting, err)
	}
}

func TestHalfCloseOfTheClient(t *testing.T) {
	client := connect(t, tunnel(t, serve(t, func(c *net.TCPConn) {
		request, _ := io.ReadAll(c)
		time.Sleep(50 * time.Millisecond)
		fmt.Fprintf(c, "%d bytes", len(request))
		_ = c.Close()
	})))
	_, err := client.Write(make([]byte, 1000))
	must(t, err)
	must(t, client.CloseWrite())
	answer, err := io.ReadAll(client)
	if err != nil || string(answer) != "1000 bytes" {
		t.Errorf("%q, %v", answer, err)
	}
}

func TestHalfCloseOfTheServer(t *testing.T) {
	got := make(chan string, 1)
	client := connect(t, tunnel(t, serve(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("bye"))
		_ = c.CloseWrite()
		rest, _ := io.ReadAll(c)
		got <- string(rest)
	})))
	answer, err := io.ReadAll(client)
	if err != nil || string(answer) != "bye" {
		t.Fatalf("%q, %v", answer, err)
	}
	_, err = client.Write([]byte("still here"))
	must(t, err)
	must(t, client.Close())
	select {
	case rest := <-got:
		if rest != "still here" {
			t.Errorf("the server got %q", rest)
		}
	case <-time.After(patience):
		t.Error("the server waits for ever")
	}
}

func TestResetOfTheServerArrivesBehindItsData(t *testing.T) {
	const size = 300_000
	client := connect(t, tunnel(t, serve(t, func(c *net.TCPConn) {
		_, _ = c.Write(make([]byte, size))
		// A RST lets the kernel forget what it hasn't sent yet; only what has reached the gateway can be asked for.
		time.Sleep(300 * time.Millisecond)
		_ = c.SetLinger(0)
		_ = c.Close()
	})))
	time.Sleep(600 * time.Millisecond)
	received, err := io.Copy(io.Discard, client)
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v, want a reset", err)
	}
	// The terminal's own RST may overtake what its kernel had not sent; with a client that reads, that is little.
	t.Logf("%d of %d bytes before the reset", received, size)
}

func TestResetOfTheClientReachesTheServer(t *testing.T) {
	for _, afterFIN := range []bool{false, true} {
		t.Run(fmt.Sprintf("after FIN %v", afterFIN), func(t *testing.T) {
			saw := make(chan error, 1)
			client := connect(t, tunnel(t, serve(t, func(c *net.TCPConn) {
				_, _ = c.Write([]byte("x"))
				_, err := io.Copy(io.Discard, c)
				for err == nil && afterFIN { // a FIN came; only a write tells of a RST behind it
					time.Sleep(20 * time.Millisecond)
					_, err = c.Write([]byte("y"))
				}
				saw <- err
			})))
			_, err := io.ReadFull(client, make([]byte, 1))
			must(t, err)
			if afterFIN {
				must(t, client.CloseWrite())
				time.Sleep(100 * time.Millisecond)
			}
			must(t, client.SetLinger(0))
			must(t, client.Close())
			select {
			case err := <-saw:
				if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
					t.Errorf("the server saw %v, want a reset", err)
				}
			case <-time.After(patience):
				t.Error("the server never heard of it")
			}
		})
	}
}

func TestRefusedForbiddenAndUnreachableDestinationsReset(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	refused := closed.Addr().String()
	must(t, closed.Close())
	for name, destination := range map[string]string{"refused": refused, "forbidden": "192.0.2.1:80"} {
		t.Run(name, func(t *testing.T) {
			client, err := net.Dial("tcp", tunnel(t, destination))
			if err == nil { // the reset may come as fast as the handshake
				defer client.Close()
				must(t, client.SetDeadline(time.Now().Add(patience)))
				_, err = client.Read(make([]byte, 1))
			}
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the client saw %v, want a reset", err)
			}
		})
	}
}

func TestClientsAreResetWhenThereIsNoGateway(t *testing.T) {
	p := newPath(t)
	arguments := p.terminalArguments("127.0.0.1:9", "-stream-timeout", "300ms")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() { ended <- program.Run(ctx, arguments, func(string) string { return "" }, io.Discard) }()
	var client *net.TCPConn
	await(t, "the terminal's listener", func() bool {
		c, err := net.Dial("tcp", p.terminal)
		if err == nil {
			client = c.(*net.TCPConn)
		}
		return err == nil
	})
	must(t, client.SetDeadline(time.Now().Add(patience)))
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client saw %v, want a reset", err)
	}
	cancel()
	<-ended
}

func TestSlowReaderHoldsUpItsServerAndNobodyElse(t *testing.T) {
	var written sync.Map
	destination := serve(t, func(c *net.TCPConn) {
		kind := make([]byte, 1)
		if _, err := io.ReadFull(c, kind); err != nil {
			return
		}
		if kind[0] == 'e' {
			echo(c)
			return
		}
		total := 0
		for block := make([]byte, 64<<10); ; {
			n, err := c.Write(block)
			total += n
			written.Store(c, total)
			if err != nil {
				return
			}
		}
	})
	address := tunnel(t, destination)
	const readers = 8
	for range readers {
		_, err := connect(t, address).Write([]byte("s"))
		must(t, err)
	}
	sum := func() (total int) {
		written.Range(func(_, n any) bool { total += n.(int); return true })
		return total
	}
	last := -1
	await(t, "an end of what the servers can write", func() bool {
		defer func() { last = sum() }()
		time.Sleep(500 * time.Millisecond)
		return last > 0 && sum() == last
	})
	// A stream's window, and the socket buffers of two TCP connections (Linux: 4 MiB to send and 6 MiB to receive at most).
	if limit := readers * (2 + 2*10) << 20; sum() > limit {
		t.Errorf("%d bytes went into the tunnel for readers that don't read, want less than %d", sum(), limit)
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	t.Logf("%d MB taken from the servers of %d readers, heap %d MB", sum()>>20, readers, memory.HeapAlloc>>20)
	other := connect(t, address)
	_, err := other.Write([]byte("e!"))
	must(t, err)
	if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
		t.Errorf("another connection is held up: %v", err)
	}
}

func TestThousandConnectionsAtOnce(t *testing.T) {
	address := tunnel(t, serve(t, echo))
	before := runtime.NumGoroutine()
	const count = 1000
	clients := make([]*net.TCPConn, count)
	var all sync.WaitGroup
	failures := make(chan error, count)
	for i := range clients {
		clients[i] = connect(t, address)
		all.Go(func() {
			sent := bytes.Repeat([]byte{byte(i)}, 10_000)
			if _, err := clients[i].Write(sent); err != nil {
				failures <- err
				return
			}
			received := make([]byte, len(sent))
			if _, err := io.ReadFull(clients[i], received); err != nil || !bytes.Equal(received, sent) {
				failures <- fmt.Errorf("connection %d got something else than it sent: %w", i, err)
			}
		})
	}
	all.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	for _, client := range clients {
		must(t, client.Close())
	}
	await(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before+10 })
}

func TestShortConnectionsLeaveNothing(t *testing.T) {
	address := tunnel(t, serve(t, echo))
	once := func() {
		client := connect(t, address)
		_, err := client.Write([]byte("hello"))
		must(t, err)
		must(t, client.CloseWrite())
		answer, err := io.ReadAll(client)
		if err != nil || string(answer) != "hello" {
			t.Fatalf("%q, %v", answer, err)
		}
		must(t, client.Close())
	}
	once()
	before := runtime.NumGoroutine()
	for range 500 {
		once()
	}
	await(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before+5 })
}

func TestClientsThatVanishAtOnceLeaveNothing(t *testing.T) {
	address := tunnel(t, serve(t, echo))
	before := runtime.NumGoroutine()
	for i := range 200 {
		client := connect(t, address)
		if i%2 == 0 {
			must(t, client.SetLinger(0))
		}
		must(t, client.Close())
	}
	await(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before+5 })
}
