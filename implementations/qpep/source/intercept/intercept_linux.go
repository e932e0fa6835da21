// Package intercept accepts TCP connections to other hosts, with Linux' TPROXY (Documentation/networking/tproxy.rst): the local
// address of an accepted connection is its original destination.
package intercept

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen opens a transparent listener for IPv4 and IPv6 on port. It needs CAP_NET_ADMIN, and the firewall rules of run_box.sh.
func Listen(port uint16) (*net.TCPListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_V6ONLY, 0),
			)
		})
		return errors.Join(err, failed)
	}}
	listener, err := config.Listen(context.Background(), "tcp6", fmt.Sprintf("[::]:%d", port))
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("interception needs CAP_NET_ADMIN (%w); -destination works without", err)
	}
	if err != nil {
		return nil, err
	}
	return listener.(*net.TCPListener), nil
}

// Destination returns the original destination of an intercepted connection. A connection to an address of this host was not
// intercepted, and is an error: the gateway could send such a connection back, again and again.
func Destination(client *net.TCPConn) (netip.AddrPort, error) {
	local := client.LocalAddr().(*net.TCPAddr).AddrPort()
	local = netip.AddrPortFrom(local.Addr().Unmap().WithZone(""), local.Port())
	own, err := net.InterfaceAddrs()
	if err != nil {
		return local, err
	}
	for _, address := range own {
		prefix, err := netip.ParsePrefix(address.String())
		if err == nil && prefix.Addr().Unmap() == local.Addr() {
			return local, fmt.Errorf("%s is this host itself", local)
		}
	}
	return local, nil
}
