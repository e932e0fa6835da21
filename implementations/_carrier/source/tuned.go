//go:build tuned

package carrier

import "github.com/quic-go/quic-go"

// Tuned says whether this build can set congestion controller, initial window, ACK rate and ACK delay.
const Tuned = true

// UseCipherSuite leaves one TLS 1.3 cipher suite to the whole process; for the endpoint contract's chacha20.
var UseCipherSuite = quic.UseCipherSuite

// WasReset says whether the other side has reset its direction of the stream, read or not.
func WasReset(stream *quic.Stream) bool { return stream.WasReset() }

func (o Options) tune(config *quic.Config) error {
	config.Tuning = quic.Tuning{
		InitialWindow: o.IW,
		Cubic:         o.CCA == "cubic",
		BBR:           o.CCA == "bbr",
		Flows:         o.Flows,
		SlowStart:     o.SlowStart,
		AckEvery:      o.AckRatio,
		AckAfter:      o.AckAfter,
		MaxAckDelay:   o.MaxAckDelay,
	}
	return nil
}
