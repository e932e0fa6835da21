package carrier

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"os"

	"github.com/quic-go/quic-go"
)

// StatelessResetKey returns a key that is the same after a restart. So a restarted listener can answer the next packet of its
// peers with a stateless reset (RFC 9000 §10.3), and the peers need not wait for the idle time-out.
func StatelessResetKey(keyFile string) (*quic.StatelessResetKey, error) {
	var key quic.StatelessResetKey
	if keyFile == "" {
		_, err := rand.Read(key[:])
		return &key, err
	}
	secret, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	derived, err := hkdf.Key(sha256.New, secret, nil, "bentpipe stateless reset", len(key))
	copy(key[:], derived)
	return &key, err
}
