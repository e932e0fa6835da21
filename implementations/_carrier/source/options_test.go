package carrier

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

func sane() Options {
	return Options{IdleTimeout: 30 * time.Second, StreamWindow: 4 << 20, ConnectionWindow: 16 << 20, MaxStreams: 10}
}

// event has the fields of a qlog event that these tests read.
type event struct {
	Name string `json:"name"`
	Data struct {
		Initiator   string `json:"initiator"`
		MaxAckDelay int    `json:"max_ack_delay"`
		Window      int    `json:"initial_congestion_window"`
		Now         int    `json:"congestion_window"`
		Header      struct {
			Type string `json:"packet_type"`
		} `json:"header"`
		Raw struct {
			Length int `json:"length"`
		} `json:"raw"`
		Frames []struct {
			Type string `json:"frame_type"`
		} `json:"frames"`
	} `json:"data"`
}

// transfer downloads `blocks` blocks of that size with the same options on both sides and returns the events of both.
// A pause after each block makes it a separate packet; packets that arrive in one batch get one ACK.
func transfer(t *testing.T, options Options, blocks, size int, pause time.Duration) (client, server []event) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return transferOver(t, conn, options, blocks, size, pause)
}

// listen starts a server with the options. It returns the listener, its configuration, and its logs with their folder.
func listen(t *testing.T, conn net.PacketConn, options Options) (*quic.Listener, *quic.Config, *Logs, string) {
	t.Helper()
	folder := t.TempDir()
	logs, err := OpenLogs("", folder)
	if err != nil {
		t.Fatal(err)
	}
	config, err := options.Config(logs)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := Trust{Anyone: true, Peer: "here"}.Server(nil, "test")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := quic.Listen(conn, trust, config)
	if err != nil {
		t.Fatal(err)
	}
	return listener, config, logs, folder
}

// transferOver is transfer with a given socket for the server, for example one that loses packets.
func transferOver(t *testing.T, conn net.PacketConn, options Options, blocks, size int, pause time.Duration) (client, server []event) {
	t.Helper()
	listener, config, logs, folder := listen(t, conn, options)
	defer listener.Close()
	total := int64(blocks * size)
	go func() {
		connection, err := listener.Accept(t.Context())
		if err != nil {
			return
		}
		stream, err := connection.OpenUniStream()
		if err != nil {
			return
		}
		for block := make([]byte, size); blocks > 0; blocks-- {
			_, _ = stream.Write(block)
			time.Sleep(pause)
		}
		_ = stream.Close()
	}()
	connection, err := quic.DialAddr(t.Context(), listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"test"}}, config)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := connection.AcceptUniStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, stream); n != total || err != nil {
		t.Fatal(n, err)
	}
	_ = connection.CloseWithError(0, "")
	logs.Close()
	return events(t, folder, "client"), events(t, folder, "server")
}

func events(t *testing.T, folder, side string) (all []event) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(folder, "*_"+side+".sqlog"))
	if len(names) != 1 {
		t.Fatalf("%d qlogs of the %s", len(names), side)
	}
	text, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range strings.Split(string(text), "\x1e") {
		var e event
		if json.Unmarshal([]byte(record), &e) == nil {
			all = append(all, e)
		}
	}
	return all
}

// count is the number of 1-RTT packets with a frame of that type.
func count(events []event, name, frame string) (n int) {
	for _, e := range events {
		if !strings.HasSuffix(e.Name, name) || e.Data.Header.Type != "1RTT" {
			continue
		}
		for _, f := range e.Data.Frames {
			if f.Type == frame {
				n++
				break
			}
		}
	}
	return n
}

func TestPacketSizeIsFixed(t *testing.T) {
	options := sane()
	options.PacketSize = 1234
	_, server := transfer(t, options, 1, 300_000, 0)
	largest := 0
	for _, e := range server {
		if strings.HasSuffix(e.Name, "packet_sent") {
			largest = max(largest, e.Data.Raw.Length)
		}
	}
	if largest != 1234 {
		t.Errorf("the largest packet has %d bytes, want 1234", largest)
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	for says, change := range map[string]func(*Options){
		"cca":                     func(o *Options) { o.CCA = "hybla" },
		"iw":                      func(o *Options) { o.IW = -1 },
		"ack-ratio":               func(o *Options) { o.AckRatio = -1 },
		"max-ack-delay":           func(o *Options) { o.MaxAckDelay = time.Minute },
		"flows 65":                func(o *Options) { o.CCA, o.Flows = "cubic", 65 },
		"flows 2":                 func(o *Options) { o.CCA, o.Flows = "newreno", 2 },
		"slow-start":              func(o *Options) { o.SlowStart = "prague" },
		`careful-resume "maybe"`:  func(o *Options) { o.CarefulResume = "maybe" },
		"newreno or cubic":        func(o *Options) { o.CarefulResume, o.CCA, o.Lifetime = "on", "bbr", time.Hour },
		"careful-resume-lifetime": func(o *Options) { o.CarefulResume, o.Lifetime = "on", 25*time.Hour },
		"packet-size":             func(o *Options) { o.PacketSize = 1500 },
		"idle-timeout":            func(o *Options) { o.IdleTimeout = time.Second },
		"stream-window":           func(o *Options) { o.StreamWindow = 0 },
		"max-streams":             func(o *Options) { o.MaxStreams = 0 },
	} {
		options := sane()
		change(&options)
		if _, err := options.Config(nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want an error that names %s", options, err, says)
		}
	}
}

func TestVariablesAndCommandLine(t *testing.T) {
	options := sane()
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	options.Register(flags, "edge-")
	variables := map[string]string{"EDGE_MAX_ACK_DELAY": "40", "EDGE_IW": "12", "EDGE_CCA": "", "IW": "99"}
	if err := FromEnvironment(flags, func(name string) string { return variables[name] }); err != nil {
		t.Fatal(err)
	}
	if err := flags.Parse([]string{"-edge-iw", "13", "-edge-idle-timeout", "1m"}); err != nil {
		t.Fatal(err)
	}
	if options.MaxAckDelay != 40*time.Millisecond || options.IW != 13 || options.IdleTimeout != time.Minute || options.CCA != "" {
		t.Errorf("%+v", options)
	}
	variables["EDGE_IW"] = "many"
	if err := FromEnvironment(flags, func(name string) string { return variables[name] }); err == nil || !strings.Contains(err.Error(), "EDGE_IW=many") {
		t.Errorf("%v, want an error that names EDGE_IW", err)
	}
}
