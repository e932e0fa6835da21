package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const floodRate = 1000 // Initial packets a second, of each kind

// initial is an Initial packet of version 1 with 1200 bytes. Its payload is random, so that it can't be decrypted.
func initial(destination, token []byte) []byte {
	packet := []byte{0xc3, 0, 0, 0, 1, byte(len(destination))}
	packet = append(packet, destination...)
	packet = append(packet, 8)
	packet = append(packet, random(8)...)
	packet = binary.BigEndian.AppendUint16(packet, 0x4000|uint16(len(token)))
	packet = append(packet, token...)
	packet = binary.BigEndian.AppendUint16(packet, 0x4000|uint16(1200-len(packet)-2))
	return append(packet, random(1200-len(packet))...)
}

func random(size int) []byte {
	data := make([]byte, size)
	_, _ = rand.Read(data)
	return data
}

// retryToken reads the gateway's connection ID and the token of a Retry; nil for other packets (RFC 9000 §17.2.5).
func retryToken(packet []byte) (source, token []byte) {
	if len(packet) < 7 || packet[0]&0xf0 != 0xf0 {
		return nil, nil
	}
	rest := packet[6+int(packet[5]):]
	size := int(rest[0])
	return rest[1 : 1+size], rest[1+size : len(rest)-16]
}

// flood sends Initials until ctx ends, from spoofed addresses (127.66.0.0/16) and from the attacker's address (127.67.0.1),
// where it answers each Retry. It counts the received Retries.
func flood(ctx context.Context, t testing.TB, gateway string, retries *atomic.Int64) *sync.WaitGroup {
	t.Helper()
	target, err := net.ResolveUDPAddr("udp", gateway)
	must(t, err)
	own, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 67, 0, 1)}, target)
	must(t, err)
	var senders sync.WaitGroup
	every := func(send func()) {
		senders.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					for range floodRate / 100 {
						send()
					}
				}
			}
		})
	}
	every(func() {
		address := random(2)
		socket, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 66, address[0], address[1])}, target)
		if err == nil {
			_, _ = socket.Write(initial(random(8), nil))
			_ = socket.Close()
		}
	})
	every(func() { _, _ = own.Write(initial(random(8), nil)) })
	senders.Go(func() {
		buffer := make([]byte, 2048)
		for {
			size, err := own.Read(buffer)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				continue
			}
			if source, token := retryToken(buffer[:size]); source != nil {
				retries.Add(1)
				_, _ = own.Write(initial(source, token))
			}
		}
	})
	context.AfterFunc(ctx, func() { _ = own.Close() })
	return &senders
}

// Terminals connect during a flood of handshakes, and the log has no line of an unknown peer.
func TestATerminalComesThroughAFlood(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, err)
	before := os.Stdout
	os.Stdout = file // where both commands log
	defer func() { os.Stdout = before }()
	p := newMiddlebox(t)
	start(t, p.gatewayArguments())
	ctx, end := context.WithCancel(t.Context())
	var retries atomic.Int64
	senders := flood(ctx, t, p.gateway, &retries)
	await(t, "Retries", func() bool { return retries.Load() > floodRate })
	start(t, p.terminalArguments(serve(t, echo)))
	client := connect(t, p.terminal)
	_, err = client.Write([]byte("x"))
	must(t, err)
	_, err = io.ReadFull(client, make([]byte, 1))
	must(t, err)
	end()
	senders.Wait()
	log, err := os.ReadFile(file.Name())
	must(t, err)
	if bytes.Contains(log, []byte("=127.66.")) || bytes.Contains(log, []byte("=127.67.")) {
		t.Errorf("the log has lines of peers that nobody knows: %s", log)
	}
	if !bytes.Contains(log, []byte("terminal is here")) {
		t.Errorf("the log lacks the terminal: %s", log)
	}
}

// BenchmarkTerminal measures the time from the start of a terminal until its tunnel is up, without and with a flood.
func BenchmarkTerminal(b *testing.B) {
	for name, flooded := range map[string]bool{"alone": false, "flooded": true} {
		b.Run(name, func(b *testing.B) {
			p := newMiddlebox(b)
			start(b, p.gatewayArguments())
			ctx, end := context.WithCancel(b.Context())
			defer end()
			var retries atomic.Int64
			if flooded {
				flood(ctx, b, p.gateway, &retries)
				await(b, "Retries", func() bool { return retries.Load() > floodRate })
			}
			destination := serve(b, echo)
			for b.Loop() {
				stop := start(b, p.terminalArguments(destination))
				b.StopTimer()
				stop()
				b.StartTimer()
			}
		})
	}
}
