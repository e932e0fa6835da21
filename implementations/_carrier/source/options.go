package carrier

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quic-go/quic-go"
)

// Options are the transport settings of one QUIC connection. A zero value of one of the first eight fields keeps quic-go's value;
// other values need the tuned library (see tune.sh).
type Options struct {
	CCA              string        // congestion controller: one of controllers
	IW               int           // initial window, in packets
	Flows            int           // number of connections that the controller emulates; 0: one
	SlowStart        string        // the condition that ends slow start, besides a loss: "hystart", "hystartpp" or "standard" (none)
	CarefulResume    string        // "on": remember the capacity of paths (RFC 9959); "off"
	Lifetime         time.Duration // of a remembered capacity
	AckRatio         int           // ack-eliciting packets per ACK, from packet AckAfter on
	AckAfter         int           // number of first packets that are acknowledged two by two, so that slow start gets enough ACKs
	MaxAckDelay      time.Duration // longest delay of an ACK
	PacketSize       int           // fixed UDP payload in bytes; 0: 1280, then path MTU discovery (RFC 8899)
	IdleTimeout      time.Duration // the connection ends after this time without a packet
	KeepAlive        time.Duration // a PING is sent after this time without a packet; 0: none
	StreamWindow     uint64        // receive window of a stream at its start, in bytes
	ConnectionWindow uint64        // receive window of the connection in bytes: the most data that waits for slow readers
	MaxStreams       int64         // concurrent streams that the other side may open
	ZeroRTT          bool          // 0-RTT data (RFC 9001 §9.2: it can be replayed)
}

// maxStreamWindow is the largest window of a stream, which it reaches when it is read fast. It is quic-go's own limit.
const maxStreamWindow = 6 << 20

// Limits of the options, from the RFCs and from quic-go's buffers.
const (
	minPacketSize  = 1200                           // RFC 9000 §14
	maxPacketSize  = 1452                           // quic-go's packet buffers
	maxMaxAckDelay = (1<<14 - 1) * time.Millisecond // RFC 9000 §18.2
	minIdleTimeout = 5 * time.Second                // quic-go accepts no smaller value from its peer
	maxWindow      = 10_000                         // packets; quic-go's largest congestion window
	maxFlows       = 64                             // with more, a loss would reduce most windows by less than a packet
	controllers    = "newreno, cubic, bbr"          // the first two are quic-go's, the third is ours
	slowStarts     = "hystart, hystartpp, standard" // quic-go's own; RFC 9406; RFC 9002
	maxLifetime    = 24 * time.Hour                 // RFC 9959 §4.3: minutes, or hours for stable paths
)

// Register adds a flag for each option. The values of o are the defaults; the names of the flags begin with prefix.
func (o *Options) Register(flags *flag.FlagSet, prefix string) {
	flags.StringVar(&o.CCA, prefix+"cca", o.CCA, "congestion `controller`: "+controllers)
	flags.IntVar(&o.IW, prefix+"iw", o.IW, "initial window in `packets`")
	flags.IntVar(&o.Flows, prefix+"flows", o.Flows, "`connections` that cubic stands for: as many share the tunnel's window")
	flags.StringVar(&o.SlowStart, prefix+"slow-start", o.SlowStart, "what `ends` slow start beside a loss: "+slowStarts+" (nothing)")
	flags.StringVar(&o.CarefulResume, prefix+"careful-resume", o.CarefulResume, "`on`: a connection begins with half of the window that "+
		"the last one on its path had (RFC 9959); off")
	flags.Var((*duration)(&o.Lifetime), prefix+"careful-resume-lifetime", "`time` for which -careful-resume remembers a path")
	flags.IntVar(&o.AckRatio, prefix+"ack-ratio", o.AckRatio, "ack-eliciting `packets` per ACK")
	flags.IntVar(&o.AckAfter, prefix+"ack-after", o.AckAfter, "`packets` that are acknowledged two by two before -ack-ratio holds")
	flags.Var((*duration)(&o.MaxAckDelay), prefix+"max-ack-delay", "longest `time` for which an ACK is held back (25ms, or a number of ms)")
	flags.IntVar(&o.PacketSize, prefix+"packet-size", o.PacketSize, "`bytes` of UDP payload, fixed (0: 1280, then path MTU discovery)")
	flags.Var((*duration)(&o.IdleTimeout), prefix+"idle-timeout", "`time` without a packet after which the connection is dead")
	flags.Var((*duration)(&o.KeepAlive), prefix+"keep-alive", "`time` without a packet after which one is sent (0: never)")
	flags.Uint64Var(&o.StreamWindow, prefix+"stream-window", o.StreamWindow, "receive window of a new stream in `bytes`")
	flags.Uint64Var(&o.ConnectionWindow, prefix+"connection-window", o.ConnectionWindow, "receive window of the connection in `bytes`")
	flags.Int64Var(&o.MaxStreams, prefix+"max-streams", o.MaxStreams, "concurrent `streams` that the other side may open")
	flags.BoolVar(&o.ZeroRTT, prefix+"zero-rtt", o.ZeroRTT, "send (terminal) and accept (gateway) 0-RTT data, which can be replayed")
}

// Config makes quic-go's configuration. The error names the option and its allowed values.
func (o Options) Config(logs *Logs) (*quic.Config, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	config := &quic.Config{
		HandshakeIdleTimeout:             10 * time.Second,
		MaxIdleTimeout:                   o.IdleTimeout,
		KeepAlivePeriod:                  o.KeepAlive,
		InitialStreamReceiveWindow:       o.StreamWindow,
		MaxStreamReceiveWindow:           max(o.StreamWindow, maxStreamWindow),
		InitialConnectionReceiveWindow:   o.ConnectionWindow,
		MaxConnectionReceiveWindow:       o.ConnectionWindow,
		MaxIncomingStreams:               o.MaxStreams,
		InitialPacketSize:                uint16(o.PacketSize),
		DisablePathMTUDiscovery:          o.PacketSize > 0,
		Allow0RTT:                        o.ZeroRTT,
		EnableStreamResetPartialDelivery: true,
		Tracer:                           logs.Tracer(),
	}
	return config, o.tune(config)
}

func (o Options) validate() error {
	switch {
	case o.CCA != "" && !slices.Contains(strings.Split(controllers, ", "), o.CCA):
		return fmt.Errorf("cca %q is not a congestion controller; take one of %s", o.CCA, controllers)
	case o.IW < 0 || o.IW > maxWindow:
		return fmt.Errorf("iw %d is not a number of packets from 1 to %d", o.IW, maxWindow)
	case o.Flows < 0 || o.Flows > maxFlows:
		return fmt.Errorf("flows %d is not a number of connections from 1 to %d", o.Flows, maxFlows)
	case o.Flows > 1 && o.CCA != "cubic":
		return fmt.Errorf("flows %d needs cca cubic, because only cubic can emulate several connections", o.Flows)
	case o.SlowStart != "" && !slices.Contains(strings.Split(slowStarts, ", "), o.SlowStart):
		return fmt.Errorf("slow-start %q is none of %s", o.SlowStart, slowStarts)
	case o.CarefulResume != "" && o.CarefulResume != "on" && o.CarefulResume != "off":
		return fmt.Errorf("careful-resume %q is neither on nor off", o.CarefulResume)
	case o.resumes() && o.CCA == "bbr":
		return errors.New("careful-resume on needs cca newreno or cubic")
	case o.resumes() && (o.Lifetime <= 0 || o.Lifetime > maxLifetime):
		return fmt.Errorf("careful-resume-lifetime %s is not a time from 1 ms to %s", o.Lifetime, maxLifetime)
	case o.AckRatio < 0 || o.AckAfter < 0:
		return errors.New("ack-ratio and ack-after are numbers of packets and can't be negative")
	case o.MaxAckDelay < 0 || o.MaxAckDelay > maxMaxAckDelay:
		return fmt.Errorf("max-ack-delay %s is not a time from 1 ms to %s", o.MaxAckDelay, maxMaxAckDelay)
	case o.PacketSize != 0 && (o.PacketSize < minPacketSize || o.PacketSize > maxPacketSize):
		return fmt.Errorf("packet-size %d is neither 0 nor from %d to %d bytes", o.PacketSize, minPacketSize, maxPacketSize)
	case o.IdleTimeout < minIdleTimeout:
		return fmt.Errorf("idle-timeout %s is too short; take %s or more", o.IdleTimeout, minIdleTimeout)
	case o.StreamWindow == 0 || o.ConnectionWindow < o.StreamWindow:
		return errors.New("stream-window must be above 0 and connection-window at least as large")
	case o.MaxStreams < 1:
		return fmt.Errorf("max-streams %d allows no stream; take 1 or more", o.MaxStreams)
	}
	return nil
}

func (o Options) resumes() bool { return o.CarefulResume == "on" }

// Applied returns the line with the applied values, which the runner reads.
func (o Options) Applied() string {
	if o.tune(&quic.Config{}) != nil {
		return "applied: cca=newreno iw=32 ack_ratio=2"
	}
	cca, window := "newreno", 32
	if o.CCA != "" {
		cca = o.CCA
	}
	if o.IW != 0 {
		window = o.IW
	}
	ratio := 2
	if o.AckRatio != 0 {
		ratio = o.AckRatio
	}
	applied := fmt.Sprintf("applied: cca=%s iw=%d ack_ratio=%d", cca, window, ratio)
	if o.Flows > 1 {
		applied += fmt.Sprintf(" flows=%d", o.Flows)
	}
	if o.SlowStart != "" && o.CCA != "bbr" { // bbr has its own slow start
		applied += " slow_start=" + o.SlowStart
	}
	if o.resumes() {
		applied += " careful_resume=on"
	}
	return applied
}

// FromEnvironment sets each flag whose variable exists: MAX_ACK_DELAY sets -max-ack-delay. An empty variable is ignored. Call it
// before flags.Parse, so that the command line overrides variables.
func FromEnvironment(flags *flag.FlagSet, getenv func(string) string) error {
	var failed error
	flags.VisitAll(func(f *flag.Flag) {
		name := strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value := getenv(name); value != "" && failed == nil {
			if err := flags.Set(f.Name, value); err != nil {
				failed = fmt.Errorf("%s=%s can't be read: %w", name, value, err)
			}
		}
	})
	return failed
}

// duration is a flag that also accepts a plain number of milliseconds.
type duration time.Duration

func (d *duration) String() string { return time.Duration(*d).String() }

func (d *duration) Set(text string) error {
	if ms, err := strconv.ParseUint(text, 10, 31); err == nil {
		*d = duration(time.Duration(ms) * time.Millisecond)
		return nil
	}
	value, err := time.ParseDuration(text)
	if err != nil || value < 0 {
		return fmt.Errorf("%q is neither a number of milliseconds nor a time such as 25ms or 5m", text)
	}
	*d = duration(value)
	return nil
}
