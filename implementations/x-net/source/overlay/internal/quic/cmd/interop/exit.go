package main

import (
	"log"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// Upstream's client logs a file that it could not fetch, but exits with 0. Upstream's server, as the first process of a container,
// ends at SIGTERM with exit code 2. This main function replaces upstream's, which the build renames.

var failed atomic.Bool

func main() {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		exit()
	}()
	interop()
	exit()
}

// fail replaces log calls of upstream.
func fail(format string, args ...any) {
	failed.Store(true)
	log.Printf(format, args...)
}

func exit() {
	if failed.Load() {
		os.Exit(1)
	}
	os.Exit(0)
}
