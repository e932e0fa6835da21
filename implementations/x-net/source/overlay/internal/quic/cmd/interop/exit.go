package main

import (
	"log"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// Upstream's client logs what it couldn't fetch and exits with 0 all the same; its server, as the first process of a
// container, dies of SIGTERM with exit code 2. This main takes the place of upstream's, which the build renames.

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

// fail stands where upstream only logs.
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
