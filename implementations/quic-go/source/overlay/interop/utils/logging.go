// Package utils replaces upstream's package of the same name, which the interop programs use for key log and qlog. With upstream's
// package, a qlog ends inside a record in two cases: the client returns while HTTP/3 still has the trace open, or SIGTERM ends the
// server before its connections. This package closes each qlog in time.
package utils

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlogwriter"
)

// GetSSLKeyLog opens the file of SSLKEYLOGFILE; nil without this variable.
func GetSSLKeyLog() (io.WriteCloser, error) {
	name := os.Getenv("SSLKEYLOGFILE")
	if name == "" {
		return nil, nil
	}
	return os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}

// NewQLOGConnectionTracer writes one JSON-SEQ qlog per connection into QLOGDIR, named after the original DCID.
func NewQLOGConnectionTracer(_ context.Context, isClient bool, odcid quic.ConnectionID) qlogwriter.Trace {
	dir := os.Getenv("QLOGDIR")
	if dir == "" {
		return nil
	}
	file, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s.sqlog", odcid)))
	if err != nil {
		log.Printf("no qlog: %s", err)
		return nil
	}
	seq := qlogwriter.NewConnectionFileSeq(&bufferedFile{bufio.NewWriter(file), file}, isClient, odcid)
	go seq.Run()
	return &trace{seq: seq}
}

type bufferedFile struct {
	*bufio.Writer
	file *os.File
}

func (f *bufferedFile) Close() error {
	if err := f.Flush(); err != nil {
		return err
	}
	return f.file.Close()
}

// trace ends with the connection: the transport requests its producer first, and closes it before Close returns to the
// application. HTTP/3's producers use the same file, and are closed later or not at all.
type trace struct {
	seq       *qlogwriter.FileSeq
	transport qlogwriter.Recorder
}

func (t *trace) AddProducer() qlogwriter.Recorder {
	if t.transport != nil {
		return borrowed{t.transport}
	}
	t.transport = &owner{Recorder: t.seq.AddProducer()}
	alive.add(t.transport)
	return t.transport
}

type borrowed struct{ qlogwriter.Recorder }

func (borrowed) Close() error { return nil }

type owner struct {
	qlogwriter.Recorder
	once sync.Once
}

func (o *owner) Close() (err error) {
	o.once.Do(func() { err = o.Recorder.Close() })
	alive.remove(o)
	return err
}

type recorders struct {
	mutex sync.Mutex
	set   map[qlogwriter.Recorder]struct{}
}

var alive = recorders{set: map[qlogwriter.Recorder]struct{}{}}

func (r *recorders) add(recorder qlogwriter.Recorder) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.set[recorder] = struct{}{}
}

func (r *recorders) remove(recorder qlogwriter.Recorder) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.set, recorder)
}

func (r *recorders) list() []qlogwriter.Recorder {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	all := make([]qlogwriter.Recorder, 0, len(r.set))
	for recorder := range r.set {
		all = append(all, recorder)
	}
	return all
}

func init() {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		for _, recorder := range alive.list() {
			_ = recorder.Close()
		}
		if os.Getenv("ROLE") == "server" {
			os.Exit(0)
		}
		os.Exit(1)
	}()
}
