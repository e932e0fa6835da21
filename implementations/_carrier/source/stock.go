//go:build !tuned

package carrier

import (
	"errors"

	"github.com/quic-go/quic-go"
)

// Tuned says whether this build can set congestion controller, initial window, ACK rate and ACK delay.
const Tuned = false

// UseCipherSuite is nil: crypto/tls has no setting for the suites of TLS 1.3.
var UseCipherSuite func(id uint16)

// WasReset doesn't know: the released quic-go tells of a reset only where its stream is read.
func WasReset(*quic.Stream) bool { return false }

// tune refuses what the released quic-go has no setting for.
func (o Options) tune(*quic.Config) error {
	if (o.CCA != "" && o.CCA != "newreno") || o.IW != 0 || o.Flows > 1 || (o.SlowStart != "" && o.SlowStart != "hystart") || o.AckRatio != 0 || o.MaxAckDelay != 0 {
		return errors.New("this build has quic-go as released, which can't be told cca, iw, flows, slow-start, ack-ratio or max-ack-delay; " +
			"take the image, or build with tune.sh and -tags tuned")
	}
	return nil
}
