package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"

	"bentpipe/carrier"
	"bentpipe/qpep/endpoint"
)

// contractStreams is the largest initial stream limit that the test case `multiplexing` allows.
const contractStreams = 1000

// contractSide has the flags of both roles of the endpoint contract.
type contractSide struct {
	*side
	testCase string
}

func declareContract(flags *flag.FlagSet) *contractSide {
	c := &contractSide{side: declareSide(flags, "")}
	c.trust.Anyone = true
	c.options.MaxStreams = contractStreams
	flags.StringVar(&c.testCase, "testcase", "", "`name` of the test case")
	return c
}

func serverCommand(flags *flag.FlagSet) func(context.Context) error {
	c := declareContract(flags)
	listen := flags.String("listen", ":443", "UDP `host:port`")
	folder := flags.String("www", "/www", "`folder` to serve, or for uploads")
	return func(ctx context.Context) error {
		logs, config, err := c.open()
		if err != nil {
			return err
		}
		defer logs.Close()
		files, err := os.OpenRoot(*folder)
		if err != nil {
			return err
		}
		trust, err := c.trust.Server(logs)
		if err != nil {
			return carrier.Misused(err)
		}
		local, err := net.ResolveUDPAddr("udp", *listen)
		if err != nil {
			return carrier.Misused(fmt.Errorf("-listen: %w", err))
		}
		socket, err := net.ListenUDP("udp", local)
		if err != nil {
			return err
		}
		server := &endpoint.Server{Folder: files, TLS: trust, QUIC: config}
		return server.Serve(ctx, c.testCase, socket)
	}
}

func clientCommand(flags *flag.FlagSet) func(context.Context) error {
	c := declareContract(flags)
	folder := flags.String("downloads", "/downloads", "`folder` for what is downloaded, or of what is uploaded")
	return func(ctx context.Context) error {
		urls, err := parseURLs(flags.Args())
		if err != nil {
			return carrier.Misused(err)
		}
		logs, config, err := c.open()
		if err != nil {
			return err
		}
		defer logs.Close()
		files, err := os.OpenRoot(*folder)
		if err != nil {
			return err
		}
		// The client of the contract does not authenticate servers.
		trust, err := carrier.Trust{Anyone: true}.Client(logs)
		if err != nil {
			return err
		}
		client := &endpoint.Client{Folder: files, TLS: trust, QUIC: config}
		return client.Fetch(ctx, c.testCase, urls)
	}
}

func parseURLs(texts []string) ([]*url.URL, error) {
	urls := make([]*url.URL, 0, len(texts))
	for _, text := range texts {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Path == "" {
			return nil, errors.Join(fmt.Errorf("%q is not a URL such as https://server4:443/name", text), err)
		}
		urls = append(urls, u)
	}
	return urls, nil
}
