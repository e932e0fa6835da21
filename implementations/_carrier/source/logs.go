package carrier

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlogwriter"
)

// Logs writes the key log and one qlog per connection, and closes them before the process ends. Otherwise, when the process ends
// before a connection, quic-go's qlog ends inside a record.
type Logs struct {
	keys   *os.File
	folder string

	mutex sync.Mutex
	alive map[*recorder]struct{}
}

// OpenLogs appends TLS secrets to the file `keys` (NSS key log format) and writes qlogs to `folder`. With "" a log is not written.
func OpenLogs(keys, folder string) (*Logs, error) {
	logs := &Logs{folder: folder, alive: map[*recorder]struct{}{}}
	if folder != "" {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, err
		}
	}
	if keys == "" {
		return logs, nil
	}
	file, err := os.OpenFile(keys, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	logs.keys = file
	return logs, err
}

// KeyLog returns the value for tls.Config.KeyLogWriter; nil without a key log.
func (l *Logs) KeyLog() io.Writer {
	if l == nil || l.keys == nil {
		return nil
	}
	return l.keys
}

// Tracer returns the value for quic.Config.Tracer; nil without a folder.
func (l *Logs) Tracer() func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace {
	if l == nil || l.folder == "" {
		return nil
	}
	return l.trace
}

// Close completes all qlogs.
func (l *Logs) Close() {
	if l == nil {
		return
	}
	l.mutex.Lock()
	open := make([]*recorder, 0, len(l.alive))
	for r := range l.alive {
		open = append(open, r)
	}
	l.mutex.Unlock()
	for _, r := range open {
		_ = r.Close()
	}
	if l.keys != nil {
		_ = l.keys.Close()
	}
}

// trace opens the JSON-SEQ qlog of one connection, named after its original destination connection ID.
func (l *Logs) trace(_ context.Context, isClient bool, id quic.ConnectionID) qlogwriter.Trace {
	side := "server"
	if isClient {
		side = "client"
	}
	file, err := os.Create(filepath.Join(l.folder, fmt.Sprintf("%s_%s.sqlog", id, side)))
	if err != nil {
		slog.Warn("no qlog", "reason", err)
		return nil
	}
	seq := qlogwriter.NewConnectionFileSeq(&buffered{bufio.NewWriter(file), file}, isClient, id)
	go seq.Run()
	return &trace{seq: seq, logs: l}
}

type buffered struct {
	*bufio.Writer
	file *os.File
}

func (b *buffered) Close() error {
	if err := b.Flush(); err != nil {
		return err
	}
	return b.file.Close()
}

// trace ends with the connection: quic-go requests the transport's recorder first, and closes it after its other recorders.
// The recorders of HTTP/3 use the same file, because they are closed later or never.
type trace struct {
	seq  *qlogwriter.FileSeq
	logs *Logs

	mutex     sync.Mutex
	transport *recorder
}

func (t *trace) AddProducer() qlogwriter.Recorder {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.transport != nil {
		return borrowed{t.transport}
	}
	t.transport = &recorder{Recorder: t.seq.AddProducer(), logs: t.logs}
	t.logs.mutex.Lock()
	t.logs.alive[t.transport] = struct{}{}
	t.logs.mutex.Unlock()
	return t.transport
}

type borrowed struct{ qlogwriter.Recorder }

func (borrowed) Close() error { return nil }

// recorder may be closed while the connection still records. Later events are dropped.
type recorder struct {
	qlogwriter.Recorder
	logs *Logs

	mutex  sync.Mutex
	closed bool
}

func (r *recorder) RecordEvent(event qlogwriter.Event) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if !r.closed {
		r.Recorder.RecordEvent(event)
	}
}

func (r *recorder) Close() error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	// The file is complete first: while the connection closes it, Logs.Close still finds it, and waits for r.mutex.
	err := r.Recorder.Close()
	r.logs.mutex.Lock()
	delete(r.logs.alive, r)
	r.logs.mutex.Unlock()
	return err
}
