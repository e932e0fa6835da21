// Package harness is what the tests of the QUIC proxies share: keys, and sides that run within the test's process.
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
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"bentpipe/carrier"
)

// Patience is how long a test waits for what has to come.
const Patience = 20 * time.Second

// Must ends the test when there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Keys makes a folder as the runner's /keys: ca.pem, and gateway, terminal and server, each .pem and .key.
func Keys(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	ca, caKey := certificate(t, folder, "ca", nil, nil)
	for _, name := range []string{"gateway", "terminal", "server"} {
		certificate(t, folder, name, ca, caKey)
	}
	return folder
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

// Start runs a side within the test's process, until the test ends or the function that it returns is called.
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
			t.Errorf("%s hasn't ended 2 s after it was told to", arguments[0])
		}
	})
	t.Cleanup(stop)
	AwaitFile(t, ready)
	return stop
}

// AwaitFile waits until there is a file of that name.
func AwaitFile(t testing.TB, name string) {
	t.Helper()
	Await(t, "the file "+name, func() bool { _, err := os.Stat(name); return err == nil })
}

// Await waits until done returns true.
func Await(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s hasn't come within %s", what, Patience)
		}
	}
}
