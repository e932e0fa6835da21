//go:build tuned

package carrier

import "github.com/quic-go/quic-go"

// Tuned is true when this build can set congestion controller, initial window, ACK rate and ACK delay.
const Tuned = true

// UseCipherSuite restricts the whole process to one TLS 1.3 cipher suite, for the test case chacha20.
var UseCipherSuite = quic.UseCipherSuite

// WasReset reports whether the other side has reset its direction of the stream, even if the stream was not read.
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
	if o.resumes() {
		config.Tuning.Paths = quic.NewPathMemory(o.Lifetime)
	}
	return nil
}
