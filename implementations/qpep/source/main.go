// Command qpep is an encrypting performance enhancing proxy for TCP over satellite links: QPEP, after "QPEP: An Actionable
// Approach to Secure and Performant Broadband From Geostationary Orbit" (NDSS 2021), on quic-go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"bentpipe/carrier"
)

const usage = `qpep COMMAND [flags]

  terminal   the side on the customer's LAN: takes TCP connections, carries them to a gateway
  gateway    the side beyond the satellite: takes streams from terminals, connects them to servers
  client     downloads URLs with QPEP's transport settings (the endpoint contract)
  server     serves /www with QPEP's transport settings (the endpoint contract)
  pin        prints the sha256/… of a certificate's key, for -pin

Every flag can be given as a variable: -max-ack-delay is MAX_ACK_DELAY. 'qpep COMMAND -h' lists them.
`

// Exit codes: 0 done, 1 failed, 2 the command line is wrong, 127 unsupported test case.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitUnsupported = 127
)

// errUsage marks mistakes on the command line or in a variable.
var errUsage = errors.New("usage")

// command declares its flags, and returns what to do once they are read.
type command func(flags *flag.FlagSet) func(ctx context.Context) error

var commands = map[string]command{
	"terminal": terminalCommand,
	"gateway":  gatewayCommand,
	"client":   clientCommand,
	"server":   serverCommand,
	"pin":      pinCommand,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stderr))
}

func run(ctx context.Context, arguments []string, getenv func(string) string, stderr io.Writer) int {
	if len(arguments) == 0 || commands[arguments[0]] == nil {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	name := arguments[0]
	flags := flag.NewFlagSet("qpep "+name, flag.ContinueOnError)
	verbose := flags.Bool("verbose", false, "one line per TCP connection")
	do := commands[name](flags)
	if err := parse(flags, arguments[1:], getenv); errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return 0
	} else if err != nil {
		fmt.Fprintf(stderr, "qpep %s: %s\n", name, err)
		return exitUsage
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: level})))
	return exitCode(name, do(ctx), stderr)
}

// parse reads the variables first, so that the command line has the last word.
func parse(flags *flag.FlagSet, arguments []string, getenv func(string) string) error {
	// The error says it all; the flag package would print it together with all flags.
	flags.SetOutput(io.Discard)
	if err := carrier.FromEnvironment(flags, getenv); err != nil {
		return err
	}
	return flags.Parse(arguments)
}

func exitCode(name string, err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUnsupported):
		fmt.Fprintf(stderr, "qpep %s: %s\n", name, err)
		return exitUnsupported
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "qpep %s: %s\n", name, strings.TrimPrefix(err.Error(), errUsage.Error()+": "))
		return exitUsage
	default:
		fmt.Fprintf(stderr, "qpep %s: %s\n", name, err)
		return exitFailed
	}
}

// misused marks err as the user's mistake; nil stays nil.
func misused(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errUsage, err)
}

// announce tells the runner that this side is ready, by an empty file.
func announce(file string) error {
	if file == "" {
		return nil
	}
	return os.WriteFile(file, nil, 0o644)
}

// report logs what counters returns every minute in which it changed, and at the end.
func report(ctx context.Context, counters func() []any) {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			slog.Info("ends", counters()...)
			return
		case <-ticker.C:
			if now := fmt.Sprint(counters()...); now != last {
				slog.Info("so far", counters()...)
				last = now
			}
		}
	}
}
