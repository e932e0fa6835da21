package carrier

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"
)

// Exit codes: 0 done, 1 failed, 2 the command line is wrong, 127 unsupported test case.
const (
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnsupported = 127
)

// ErrUnsupported says that there is nothing for a test case of the endpoint contract.
var ErrUnsupported = errors.New("unsupported test case")

// errUsage marks mistakes on the command line or in a variable.
var errUsage = errors.New("usage")

// Misused marks err as the user's mistake; nil stays nil.
func Misused(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errUsage, err)
}

// Command declares its flags, and returns what to do once they are read.
type Command func(flags *flag.FlagSet) func(ctx context.Context) error

// Program is a command line with several commands. Every flag can be given as a variable.
type Program struct {
	Name     string
	Usage    string
	Commands map[string]Command
}

// Run does what the arguments say and returns the exit code. Logs go to the standard output.
func (p Program) Run(ctx context.Context, arguments []string, getenv func(string) string, stderr io.Writer) int {
	if len(arguments) == 0 || p.Commands[arguments[0]] == nil {
		fmt.Fprint(stderr, p.Usage)
		return ExitUsage
	}
	name := p.Name + " " + arguments[0]
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	verbose := flags.Bool("verbose", false, "one line per connection")
	do := p.Commands[arguments[0]](flags)
	if err := parse(flags, arguments[1:], getenv); errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return 0
	} else if err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", name, err)
		return ExitUsage
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
	if err := FromEnvironment(flags, getenv); err != nil {
		return err
	}
	return flags.Parse(arguments)
}

func exitCode(name string, err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %s\n", name, strings.TrimPrefix(err.Error(), errUsage.Error()+": "))
	switch {
	case errors.Is(err, ErrUnsupported):
		return ExitUnsupported
	case errors.Is(err, errUsage):
		return ExitUsage
	default:
		return ExitFailed
	}
}

// Announce tells the runner that this side is ready, by an empty file; "" for nobody.
func Announce(file string) error {
	if file == "" {
		return nil
	}
	return os.WriteFile(file, nil, 0o644)
}

// Report logs what counters returns every minute in which it changed, and when ctx ends.
func Report(ctx context.Context, counters func() []any) {
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
