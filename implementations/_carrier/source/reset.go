package carrier

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"os"

	"github.com/quic-go/quic-go"
)

// StatelessResetKey is the same after a restart, so that a listener that was killed tells its peers at their next
// packet that their connections are gone (RFC 9000 §10.3), rather than leave them to the idle time-out.
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
