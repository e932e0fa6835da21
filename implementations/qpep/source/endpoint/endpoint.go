// Package endpoint implements the endpoint contract of the QUIC Interop Runner, so that QPEP's transport can be paired with every
// other stack. It has HTTP/0.9 over QUIC (ALPN hq-interop; request: `GET /name` and FIN; response: the file and FIN) and HTTP/3.
package endpoint

import (
	"crypto/tls"
	"fmt"

	"bentpipe/carrier"
)

// protocol is the ALPN identifier of HTTP/0.9 over QUIC.
const protocol = "hq-interop"

// prepare applies the settings of a test case that concern the whole process.
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
