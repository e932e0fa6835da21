// Command traffic is the load of ../benchmark: TCP connections through any middlebox.
//
//	traffic serve PORT                      answers connections on this port and the next 19; the first 8 bytes have the number of requested bytes
//	traffic bulk ADDRESS CONNECTIONS TIME   downloads for TIME, prints Mbit/s
//	traffic hold ADDRESS COUNT TIME         COUNT connections to these 20 ports, all open at once: each downloads 10 kB, waits, downloads again
//	traffic short ADDRESS COUNT             COUNT connections to these 20 ports, 50 at once, 1 kB each; prints connections per second
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "traffic:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) < 2 {
		return errors.New("name one of serve, bulk, hold, short, and its arguments")
	}
	address := arguments[1]
	count, duration := 1, time.Second
	var err error
	if len(arguments) > 2 {
		if count, err = strconv.Atoi(arguments[2]); err != nil {
			return err
		}
	}
	if len(arguments) > 3 {
		if duration, err = time.ParseDuration(arguments[3]); err != nil {
			return err
		}
	}
	switch arguments[0] {
	case "serve":
		return serve(address)
	case "bulk":
		return bulk(address, count, duration)
	case "hold":
		return hold(address, count, duration)
	case "short":
		return short(address, count)
	default:
		return fmt.Errorf("there is no %q", arguments[0])
	}
}

// ports is the number of server ports. With a single port, a client would have no free ports after 28,000 connections in a minute
// (TIME-WAIT).
const ports = 20

func serve(first string) error {
	port, err := strconv.Atoi(first)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for i := range ports {
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port+i))
		if err != nil {
			return err
		}
		go func() {
			for {
				connection, err := listener.Accept()
				if err != nil {
					failed <- err
					return
				}
				go answer(connection)
			}
		}()
	}
	return <-failed
}

var block [256 << 10]byte

// answer serves requests until the client closes the connection.
func answer(c net.Conn) {
	defer c.Close()
	var request [8]byte
	for {
		if _, err := io.ReadFull(c, request[:]); err != nil {
			return
		}
		for left := binary.BigEndian.Uint64(request[:]); left > 0; {
			n, err := c.Write(block[:min(left, uint64(len(block)))])
			if err != nil {
				return
			}
			left -= uint64(n)
		}
	}
}

func ask(c net.Conn, size uint64) error {
	_, err := c.Write(binary.BigEndian.AppendUint64(nil, size))
	return err
}

func bulk(address string, connections int, duration time.Duration) error {
	var received atomic.Int64
	for range connections {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		if err := ask(c, 1<<40); err != nil {
			return err
		}
		go func() {
			buffer := make([]byte, 256<<10)
			for {
				n, err := c.Read(buffer)
				received.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
	}
	time.Sleep(time.Second) // slow start is over
	start, before := time.Now(), received.Load()
	time.Sleep(duration)
	rate := float64(received.Load()-before) * 8 / time.Since(start).Seconds()
	if rate == 0 {
		return errors.New("nothing arrived")
	}
	fmt.Printf("%.0f\n", rate/1e6)
	return nil
}

func get(c net.Conn, size int64) error {
	if err := ask(c, uint64(size)); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, c, size)
	return err
}

func hold(address string, count int, duration time.Duration) error {
	const atOnce = 500 // connections that are being opened or read; more would overflow the queues of the listeners
	first, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	var all, ready sync.WaitGroup
	failures := make(chan error, count)
	turns := make(chan struct{}, atOnce)
	together := make(chan struct{})
	fetch := func(c net.Conn) error {
		turns <- struct{}{}
		defer func() { <-turns }()
		return get(c, 10_000)
	}
	ready.Add(count)
	for i := range count {
		turns <- struct{}{}
		target := netip.AddrPortFrom(first.Addr(), first.Port()+uint16(i%ports)).String()
		all.Go(func() {
			failures <- func() error {
				c, err := net.Dial("tcp", target)
				if err == nil {
					defer c.Close()
					err = get(c, 10_000)
				}
				<-turns
				ready.Done()
				if err != nil {
					return err
				}
				<-together
				time.Sleep(duration)
				return fetch(c)
			}()
		})
	}
	ready.Wait()
	fmt.Println("all are open")
	close(together)
	all.Wait()
	close(failures)
	failed := 0
	for err := range failures {
		if err != nil {
			failed++
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d connections failed", failed, count)
	}
	return nil
}

func short(address string, count int) error {
	const atOnce = 50
	first, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	var next, failed atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for range atOnce {
		all.Go(func() {
			for n := next.Add(1); n <= int64(count); n = next.Add(1) {
				server := netip.AddrPortFrom(first.Addr(), first.Port()+uint16(n%ports))
				c, err := net.Dial("tcp", server.String())
				if err == nil {
					err = get(c, 1000)
					_ = c.Close()
				}
				if err != nil && failed.Add(1) <= 5 {
					fmt.Fprintln(os.Stderr, err)
				}
			}
		})
	}
	all.Wait()
	if failed.Load() > 0 {
		return fmt.Errorf("%d of %d connections failed", failed.Load(), count)
	}
	fmt.Printf("%.0f\n", float64(count)/time.Since(start).Seconds())
	return nil
}
