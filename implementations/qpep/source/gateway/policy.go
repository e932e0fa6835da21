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

// Policy says which destinations terminals may reach. The zero Policy allows every address outside the gateway itself:
// nothing unspecified, loopback, link-local or multicast, and none of the host's own, so that nobody gets at what only the
// gateway's host may see: its firewall takes what comes to an own address from the host for local.
type Policy struct {
	allowed []rule
}

type rule struct {
	network netip.Prefix
	ports   []portRange // none: all
}

type portRange struct{ first, last uint16 }

// ParsePolicy reads networks separated by spaces, each with its ports: "10.0.0.0/8:80,443,8000-8099 [2001:db8::/32]:22 192.0.2.7".
// Only what is listed is allowed then, loopback too if it is. No text: the zero Policy.
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

// Allows says whether a terminal may have a connection to that address. It must be a plain one (header.Read sees to it).
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

// own says whether the host itself has the address: then a socket to it has the same address as its source. The UDP
// socket sends nothing. When the host can't tell, for want of descriptors, say, the address counts as its own.
func own(address netip.Addr) bool {
	probe, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 9)))
	if err != nil {
		// Without a route or a source address, no connection leads there either; the dial reports that.
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
