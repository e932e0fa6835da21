package gateway

import (
	"net/netip"
	"syscall"
	"testing"
)

func TestPolicy(t *testing.T) {
	for _, c := range []struct {
		rules, destination string
		allowed            bool
	}{
		{"", "192.0.2.1:443", true},
		{"", "10.1.2.3:22", true},
		{"", "[2001:db8::1]:80", true},
		{"", "127.0.0.1:80", false},
		{"", "127.8.8.8:80", false},
		{"", "[::1]:80", false},
		{"", "169.254.169.254:80", false},
		{"", "[fe80::1]:80", false},
		{"", "0.0.0.0:80", false},
		{"", "0.1.2.3:80", false},
		{"", "[::]:80", false},
		{"", "224.0.0.1:80", false},
		{"", "255.255.255.255:80", false},
		{"", "192.0.2.1:0", false},
		{"10.0.0.0/8:80,8000-8099", "10.9.9.9:80", true},
		{"10.0.0.0/8:80,8000-8099", "10.9.9.9:8099", true},
		{"10.0.0.0/8:80,8000-8099", "10.9.9.9:8100", false},
		{"10.0.0.0/8:80,8000-8099", "11.0.0.1:80", false},
		{"10.0.0.0/8 [2001:db8::/32]:22", "[2001:db8:1::1]:22", true},
		{"10.0.0.0/8 [2001:db8::/32]:22", "[2001:db8:1::1]:23", false},
		{"192.0.2.7", "192.0.2.7:9", true},
		{"192.0.2.7", "192.0.2.8:9", false},
		{"2001:db8::7", "[2001:db8::7]:9", true},
		{"127.0.0.0/8", "127.0.0.1:80", true},
		{"0.0.0.0/0", "[2001:db8::1]:80", false},
	} {
		policy, err := ParsePolicy(c.rules)
		if err != nil {
			t.Fatal(err)
		}
		if allowed := policy.Allows(netip.MustParseAddrPort(c.destination)); allowed != c.allowed {
			t.Errorf("%q allows %s: %v, want %v", c.rules, c.destination, allowed, c.allowed)
		}
	}
}

func TestBrokenPolicies(t *testing.T) {
	for _, text := range []string{"example.net", "10.0.0.0/33", "10.0.0.0/8:http", "10.0.0.0/8:90-80", "[2001:db8::/32]22", "10.0.0.0/8:70000"} {
		if _, err := ParsePolicy(text); err == nil {
			t.Errorf("%q was taken for a policy", text)
		}
	}
}

func TestOwnAddresses(t *testing.T) {
	for address, mine := range map[string]bool{"127.0.0.1": true, "192.0.2.1": false, "2001:db8::1": false} {
		if found := own(netip.MustParseAddr(address)); found != mine {
			t.Errorf("%s is the host's own: %v, want %v", address, found, mine)
		}
	}
}

// Without a descriptor left, the gateway can't see whether an address is its own.
func TestThePolicyFailsClosed(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	destination := netip.MustParseAddrPort("192.0.2.1:443")
	none := limit
	none.Cur = 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	allowed := Policy{}.Allows(destination)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if allowed {
		t.Error("an address that could not be looked at was allowed")
	}
	if !(Policy{}).Allows(destination) {
		t.Error("the same address is not allowed with descriptors")
	}
}
