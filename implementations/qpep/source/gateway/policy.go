package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Policy has the destinations that terminals may reach. The zero Policy allows all addresses except unspecified, loopback,
// link-local and multicast addresses, and those of the gateway's host. So terminals can't reach services that only the host may
// use: its firewall takes connections from the host to its own addresses for local ones.
type Policy struct {
	allowed []rule
}

type rule struct {
	network netip.Prefix
	ports   []portRange // empty: all ports
}

type portRange struct{ first, last uint16 }

// ParsePolicy reads networks separated by spaces, each with its ports: "10.0.0.0/8:80,443,8000-8099 [2001:db8::/32]:22 192.0.2.7".
// Only listed destinations are allowed, even loopback addresses. An empty text gives the zero Policy.
func ParsePolicy(text string) (Policy, error) {
	var policy Policy
	for _, field := range strings.Fields(text) {
		r, err := parseRule(field)
		if err != nil {
			return Policy{}, fmt.Errorf("allowed destination %q is not a network with ports "+
				"such as 10.0.0.0/8:80,8000-8099 or [2001:db8::/32]:22: %w", field, err)
		}
		policy.allowed = append(policy.allowed, r)
	}
	return policy, nil
}

func parseRule(field string) (rule, error) {
	network, ports := field, ""
	if inside, after, bracketed := strings.Cut(strings.TrimPrefix(field, "["), "]"); strings.HasPrefix(field, "[") && bracketed {
		network, ports = inside, strings.TrimPrefix(after, ":")
		if after != "" && !strings.HasPrefix(after, ":") {
			return rule{}, fmt.Errorf("%q follows the bracket", after)
		}
	} else if strings.Count(field, ":") == 1 {
		network, ports, _ = strings.Cut(field, ":")
	}
	prefix, err := parsePrefix(network)
	if err != nil {
		return rule{}, err
	}
	r := rule{network: prefix}
	if ports == "" {
		return r, nil
	}
	for _, text := range strings.Split(ports, ",") {
		span, err := parsePorts(text)
		if err != nil {
			return rule{}, err
		}
		r.ports = append(r.ports, span)
	}
	return r, nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err
}

func parsePorts(text string) (portRange, error) {
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	first, err := strconv.ParseUint(low, 10, 16)
	if err != nil {
		return portRange{}, fmt.Errorf("port %q", low)
	}
	last, err := strconv.ParseUint(high, 10, 16)
	if err != nil || last < first {
		return portRange{}, fmt.Errorf("ports %q", text)
	}
	return portRange{uint16(first), uint16(last)}, nil
}

// Allows reports whether a terminal may connect to this address. The address must not be IPv4-mapped (header.Read ensures this).
func (p Policy) Allows(destination netip.AddrPort) bool {
	if destination.Port() == 0 {
		return false
	}
	address := destination.Addr()
	if len(p.allowed) == 0 {
		return !(address.IsUnspecified() || address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsMulticast() ||
			address == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || address.Is4() && address.As4()[0] == 0 || own(address))
	}
	return slices.ContainsFunc(p.allowed, func(r rule) bool { return r.matches(destination) })
}

var noWay = []error{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT}

// own reports whether the host itself has the address: a UDP socket that is connected to it then has the same source address. The
// socket sends nothing. When the check fails, for example without free descriptors, the address counts as the host's own.
func own(address netip.Addr) bool {
	probe, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 9)))
	if err != nil {
		// Without a route or a source address, a connection is not possible either. The dial reports this.
		return !slices.ContainsFunc(noWay, func(reason error) bool { return errors.Is(err, reason) })
	}
	defer probe.Close()
	return probe.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap() == address
}

func (r rule) matches(destination netip.AddrPort) bool {
	if !r.network.Contains(destination.Addr()) {
		return false
	}
	return len(r.ports) == 0 || slices.ContainsFunc(r.ports, func(p portRange) bool {
		return p.first <= destination.Port() && destination.Port() <= p.last
	})
}
