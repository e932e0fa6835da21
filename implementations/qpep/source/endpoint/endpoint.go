// Package endpoint speaks HTTP/0.9 over QUIC (ALPN hq-interop: `GET /name`, FIN; the bare file, FIN) and HTTP/3 after the
// endpoint contract of the QUIC Interop Runner, so that QPEP's transport can be paired with every other stack.
package endpoint

import (
	"crypto/tls"
	"fmt"

	"bentpipe/carrier"
)

// protocol is the ALPN identifier of HTTP/0.9 over QUIC.
const protocol = "hq-interop"

// prepare does what a test case asks of the whole process.
func prepare(testCase string) error {
	if testCase != "chacha20" {
		return nil
	}
	if carrier.UseCipherSuite == nil {
		return fmt.Errorf("%w chacha20: this build has quic-go as released", carrier.ErrUnsupported)
	}
	carrier.UseCipherSuite(tls.TLS_CHACHA20_POLY1305_SHA256)
	return nil
}
