package quic

import (
	"github.com/quic-go/quic-go/internal/qtls"
	"github.com/quic-go/quic-go/internal/utils"
)

// Tuning is the type of Config.Tuning.
type Tuning = utils.Tuning

// UseCipherSuite leaves one TLS 1.3 cipher suite to the whole process, as quic-go's own interop programs do.
func UseCipherSuite(id uint16) { qtls.SetCipherSuite(id) }
