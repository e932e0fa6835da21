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

// Exit codes: 0 success, 1 failure, 2 wrong command line, 127 unsupported test case.
const (
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnsupported = 127
)

// ErrUnsupported is the error for a test case of the endpoint contract that is not supported.
var ErrUnsupported = errors.New("unsupported test case")

// errUsage marks an error on the command line or in a variable.
var errUsage = errors.New("usage")

// Misused marks err as an error of the user. It returns nil for nil.
func Misused(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errUsage, err)
}

// Command declares its flags, and returns the function that runs after the flags were parsed.
type Command func(flags *flag.FlagSet) func(ctx context.Context) error

// Program is a command line with several commands. Each flag can also be set by a variable.
type Program struct {
	Name     string
	Usage    string
	Commands map[string]Command
}

// Run executes the command of the arguments and returns the exit code. Logs are written to the standard output.
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

// parse reads the variables first, so that the command line overrides them.
func parse(flags *flag.FlagSet, arguments []string, getenv func(string) string) error {
	// The error is printed elsewhere. The flag package would print it together with all flags.
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

// Announce creates an empty file, which tells the runner that this side is ready. With "" it does nothing.
func Announce(file string) error {
	if file == "" {
		return nil
	}
	return os.WriteFile(file, nil, 0o644)
}

// Report logs the result of counters once a minute if it has changed, and when ctx ends.
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
