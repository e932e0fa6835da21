// Command qpep is an encrypting performance enhancing proxy for TCP over satellite links. It implements "QPEP: An Actionable
// Approach to Secure and Performant Broadband From Geostationary Orbit" (NDSS 2021) with quic-go.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

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

var program = carrier.Program{Name: "qpep", Usage: usage, Commands: map[string]carrier.Command{
	"terminal": terminalCommand,
	"gateway":  gatewayCommand,
	"client":   clientCommand,
	"server":   serverCommand,
	"pin":      pinCommand,
}}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := program.Run(ctx, os.Args[1:], os.Getenv, os.Stderr)
	stop()
	os.Exit(code)
}
