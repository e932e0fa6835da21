package quic

import (
	"github.com/quic-go/quic-go/internal/qtls"
	"github.com/quic-go/quic-go/internal/utils"
)

// Tuning is the type of Config.Tuning.
type Tuning = utils.Tuning

// UseCipherSuite leaves one TLS 1.3 cipher suite to the whole process, as quic-go's own interop programs do.
func UseCipherSuite(id uint16) { qtls.SetCipherSuite(id) }

// WasReset says whether a RESET_STREAM has come (RFC 9000 §19.4), which Read tells of only behind what is to be read first.
// The callback of SetReceiveFinalSizeCallback, which FIN calls as well, is the time to ask.
func (s *Stream) WasReset() bool {
	s.receiveStr.mutex.Lock()
	defer s.receiveStr.mutex.Unlock()
	return s.receiveStr.cancelledRemotely
}
