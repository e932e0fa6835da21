//go:build !tuned

package carrier

import (
	"errors"

	"github.com/quic-go/quic-go"
)

// Tuned is true when this build can set congestion controller, initial window, ACK rate and ACK delay.
const Tuned = false

// UseCipherSuite is nil: crypto/tls has no setting for the suites of TLS 1.3.
var UseCipherSuite func(id uint16)

// WasReset always returns false: the released quic-go reports a reset only when the stream is read.
func WasReset(*quic.Stream) bool { return false }

// tune refuses options for which the released quic-go has no setting.
func (o Options) tune(*quic.Config) error {
	if (o.CCA != "" && o.CCA != "newreno") || o.IW != 0 || o.Flows > 1 || (o.SlowStart != "" && o.SlowStart != "hystart") || o.resumes() || o.AckRatio != 0 || o.MaxAckDelay != 0 {
		return errors.New("this build has quic-go as released, which can't be told cca, iw, flows, slow-start, careful-resume, ack-ratio or max-ack-delay; " +
			"take the image, or build with tune.sh and -tags tuned")
	}
	return nil
}
