// Package harness has the common parts of the tests of the QUIC proxies: keys, and sides that run in the test's process.
package harness

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bentpipe/carrier"
)

// Patience is the longest time for which a test waits for an expected event.
const Patience = 20 * time.Second

// Must fails the test when err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Keys creates a folder like the runner's /keys: ca.pem, and .pem and .key files of gateway, terminal and server.
func Keys(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	ca, caKey := certificate(t, folder, "ca", nil, nil)
	for _, name := range []string{"gateway", "terminal", "server"} {
		certificate(t, folder, name, ca, caKey)
	}
	return folder
}

var addresses atomic.Uint32

// Address returns an address that nobody else uses: a loopback address of its own, and a port below those that the kernel
// gives to sockets. A port that was only free a moment ago can be taken by a parallel test.
func Address() string {
	n := addresses.Add(1)
	return fmt.Sprintf("127.1.%d.%d:4433", n>>8&0xff, n&0xff)
}

func certificate(t testing.TB, folder, name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: parent == nil,
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	Must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	Must(t, err)
	Must(t, os.WriteFile(filepath.Join(folder, name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	Must(t, os.WriteFile(filepath.Join(folder, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	parsed, err := x509.ParseCertificate(der)
	Must(t, err)
	return parsed, key
}

// Start runs a side in the test's process, until the test ends or stop is called.
func Start(t testing.TB, program carrier.Program, arguments []string) (stop func()) {
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
			t.Errorf("%s has not ended 2 s after the request", arguments[0])
		}
	})
	t.Cleanup(stop)
	AwaitFile(t, ready)
	return stop
}

// AwaitFile waits until the file exists.
func AwaitFile(t testing.TB, name string) {
	t.Helper()
	Await(t, "the file "+name, func() bool { _, err := os.Stat(name); return err == nil })
}

// Await waits until done returns true.
func Await(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen within %s", what, Patience)
		}
	}
}
