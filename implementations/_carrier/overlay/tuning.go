package quic

import (
	"time"

	"github.com/quic-go/quic-go/internal/qtls"
	"github.com/quic-go/quic-go/internal/utils"
)

// Tuning is the type of Config.Tuning.
type Tuning = utils.Tuning

// PathMemory is the type of Tuning.Paths.
type PathMemory = utils.PathMemory

// NewPathMemory makes a memory whose entries expire.
func NewPathMemory(lifetime time.Duration) *PathMemory { return utils.NewPathMemory(lifetime) }

// UseCipherSuite restricts the whole process to one TLS 1.3 cipher suite, as quic-go's own interop programs do.
func UseCipherSuite(id uint16) { qtls.SetCipherSuite(id) }

// WasReset reports whether a RESET_STREAM has arrived (RFC 9000 §19.4). Read reports it only after all earlier data was read. Call
// it in the callback of SetReceiveFinalSizeCallback, which is called after a FIN or a reset.
func (s *Stream) WasReset() bool {
	s.receiveStr.mutex.Lock()
	defer s.receiveStr.mutex.Unlock()
	return s.receiveStr.cancelledRemotely
}
