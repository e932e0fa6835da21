//go:build tuned

package carrier

import (
	"testing"
	"time"
)

const (
	bbrRTT = 60 * time.Millisecond
	bbrGap = 400 * time.Microsecond    // between datagrams of 1200 bytes: 24 Mbit/s
	bbrBDP = int(bbrRTT/bbrGap) * 1200 // bytes
)

// download transfers `bytes` bytes over a link of 24 Mbit/s that loses every `lossy`th datagram.
func download(t *testing.T, cca string, bytes, lossy int) (took time.Duration, server []event) {
	t.Helper()
	options := sane()
	options.CCA, options.PacketSize, options.StreamWindow = cca, 1200, 16<<20
	path := newLink(t, bbrGap, func(time.Duration) time.Duration { return bbrRTT })
	path.lossy = lossy
	began := time.Now()
	_, server = transferOver(t, path, options, bytes/10_000, 10_000, 0)
	return time.Since(began), server
}

// One packet in 50 is lost: the window of Cubic falls to about 10 packets, the window of BBR stays.
func TestBBRKeepsItsRateWhateverIsLost(t *testing.T) {
	cubic, _ := download(t, "cubic", 1_500_000, 50)
	bbr, _ := download(t, "bbr", 1_500_000, 50)
	t.Logf("bbr %s, cubic %s", bbr, cubic)
	if 2*bbr > cubic {
		t.Errorf("1.5 MB at a loss of 2 %% take %s with bbr and %s with cubic, want less than half", bbr, cubic)
	}
}

// The queue of the link is never full, so that only the model of BBR limits the window.
func TestBBRsWindowIsTwiceTheBDP(t *testing.T) {
	_, server := download(t, "bbr", 8_000_000, 0)
	largest, last := 0, 0
	for _, e := range server {
		if e.Data.Now > 0 {
			largest, last = max(largest, e.Data.Now), e.Data.Now
		}
	}
	t.Logf("at the end %d bytes, at most %d; BDP %d", last, largest, bbrBDP)
	if last < bbrBDP*3/2 || largest > 3*bbrBDP {
		t.Errorf("the window ends at %d bytes and was at most %d; the BDP is %d", last, largest, bbrBDP)
	}
}
