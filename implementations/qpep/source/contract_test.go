package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bentpipe/carrier"
	"bentpipe/carrier/harness"
)

// environment has the variables that the runner sets by the contract of endpoints, and those of the test.
func environment(testCase, logs string, more ...string) func(string) string {
	variables := map[string]string{
		"TESTCASE": testCase, "QLOGDIR": filepath.Join(logs, "qlog"), "SSLKEYLOGFILE": filepath.Join(logs, "keys.log"),
	}
	for i := 0; i < len(more); i += 2 {
		variables[more[i]] = more[i+1]
	}
	return func(name string) string { return variables[name] }
}

func TestEndpointContract(t *testing.T) {
	if !carrier.Tuned {
		t.Skip("chacha20 and the initial window need the tuned quic-go")
	}
	for _, testCase := range []string{"handshake", "transfer", "multiconnect", "retry", "resumption", "zerortt", "http3", "upload", "ecn"} {
		t.Run(testCase, func(t *testing.T) {
			www, downloads, logs := t.TempDir(), t.TempDir(), t.TempDir()
			content := make([]byte, 300_000)
			_, _ = rand.Read(content)
			for _, name := range []string{"one", "two"} {
				must(t, os.WriteFile(filepath.Join(www, name), content, 0o600))
			}
			servers, clients := www, downloads
			if testCase == "upload" {
				servers, clients = downloads, www
			}
			address := harness.Address()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan int, 1)
			go func() {
				ended <- program.Run(ctx, []string{"server", "-listen", address, "-www", servers},
					environment(testCase, filepath.Join(logs, "server"), "IW", "17", "SSLKEYLOGFILE", ""), os.Stderr)
			}()
			time.Sleep(50 * time.Millisecond)
			code := program.Run(t.Context(), []string{"client", "-downloads", clients, "https://" + address + "/one", "https://" + address + "/two"},
				environment(testCase, logs), os.Stderr)
			cancel()
			if served := <-ended; code != 0 || served != 0 {
				t.Fatalf("exit codes %d and %d", code, served)
			}
			for _, name := range []string{"one", "two"} {
				if got, err := os.ReadFile(filepath.Join(downloads, name)); err != nil || !bytes.Equal(got, content) {
					t.Errorf("%s: %v, %d bytes, not what is served", name, err, len(got))
				}
			}
			expectLogs(t, logs)
		})
	}
}

// expectLogs checks that both sides have complete qlogs, the requested initial window at the server, and the key log.
func expectLogs(t *testing.T, logs string) {
	t.Helper()
	keys, err := os.ReadFile(filepath.Join(logs, "keys.log"))
	if err != nil || !strings.Contains(string(keys), "CLIENT_TRAFFIC_SECRET_0") {
		t.Errorf("key log: %v, %q", err, keys)
	}
	for _, pattern := range []string{"qlog/*_client.sqlog", "server/qlog/*_server.sqlog"} {
		names, _ := filepath.Glob(filepath.Join(logs, pattern))
		if len(names) == 0 {
			t.Errorf("no %s", pattern)
		}
		for _, name := range names {
			text, _ := os.ReadFile(name)
			if !bytes.HasSuffix(text, []byte("}\n")) {
				t.Errorf("%s is cut", name)
			}
			if strings.HasPrefix(pattern, "server") && !bytes.Contains(text, []byte(`"initial_congestion_window":21760`)) { // 17 · 1280
				t.Errorf("%s: no initial window of 17 packets", name)
			}
		}
	}
}

func TestUnknownTestCase(t *testing.T) {
	for _, role := range []string{"client", "server"} {
		arguments := []string{role, "-listen", "127.0.0.1:0", "-www", t.TempDir()}
		if role == "client" {
			arguments = []string{role, "-downloads", t.TempDir(), "https://127.0.0.1:1/x"}
		}
		var stderr strings.Builder
		code := program.Run(t.Context(), arguments, environment("nobody-knows-it", t.TempDir()), &stderr)
		if code != carrier.ExitUnsupported {
			t.Errorf("%s: exit code %d (%s), want 127", role, code, stderr.String())
		}
	}
}
