package carrier

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go/qlogwriter"
)

// slowFile is a qlog whose last events take a while.
type slowFile struct {
	qlogwriter.Recorder
	begun    chan struct{}
	complete atomic.Bool
}

func (s *slowFile) Close() error {
	close(s.begun)
	time.Sleep(50 * time.Millisecond)
	s.complete.Store(true)
	return nil
}

// A server that ends closes its logs while connections close theirs.
func TestLogsCloseWaitsForQlogsThatConnectionsClose(t *testing.T) {
	logs, err := OpenLogs("", "")
	if err != nil {
		t.Fatal(err)
	}
	file := &slowFile{begun: make(chan struct{})}
	r := &recorder{Recorder: file, logs: logs}
	logs.alive[r] = struct{}{}
	go r.Close()
	<-file.begun
	logs.Close()
	if !file.complete.Load() {
		t.Error("Logs.Close returned before the qlog was complete")
	}
}
