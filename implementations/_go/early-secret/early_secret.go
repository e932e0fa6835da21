package handshake

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"sync"

	"github.com/quic-go/quic-go/internal/protocol"
)

// Go's crypto/tls never writes CLIENT_EARLY_TRAFFIC_SECRET to the key log, so 0-RTT packets could not be decrypted. The client's
// QUIC layer gets this secret, and the ClientHello with the random value that the line of the key log needs.

const randomOffset, randomEnd = 6, 38 // in a ClientHello message: type (1), length (3), legacy_version (2), random (32)

var clientRandoms sync.Map // *cryptoSetup → []byte

// logEarlySecret is called for each event of the TLS stack.
func (h *cryptoSetup) logEarlySecret(event tls.QUICEvent) {
	if h.perspective != protocol.PerspectiveClient || h.tlsConf.KeyLogWriter == nil {
		return
	}
	switch {
	case event.Kind == tls.QUICWriteData && event.Level == tls.QUICEncryptionLevelInitial && len(event.Data) >= randomEnd:
		clientRandoms.Store(h, bytes.Clone(event.Data[randomOffset:randomEnd]))
	case event.Kind == tls.QUICSetWriteSecret && event.Level == tls.QUICEncryptionLevelEarly:
		if random, ok := clientRandoms.Load(h); ok {
			fmt.Fprintf(h.tlsConf.KeyLogWriter, "CLIENT_EARLY_TRAFFIC_SECRET %x %x\n", random, event.Data)
		}
	case event.Kind == tls.QUICHandshakeDone:
		clientRandoms.Delete(h)
	}
}
