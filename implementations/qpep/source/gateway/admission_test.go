package gateway

import (
	"context"
	"net"
	"testing"

	"github.com/quic-go/quic-go"
)

func from(address string, proved bool) *quic.ClientInfo {
	return &quic.ClientInfo{RemoteAddr: &net.UDPAddr{IP: net.ParseIP(address), Port: 1}, AddrVerified: proved}
}

func admit(t *testing.T, a *Admission, client *quic.ClientInfo) (ctx context.Context, end context.CancelFunc, err error) {
	t.Helper()
	parent, end := context.WithCancel(t.Context())
	ctx, err = a.Admit(parent, client)
	return ctx, end, err
}

func TestAPeerMustProveItsAddressUnderLoad(t *testing.T) {
	a := &Admission{RetryFrom: 2, PerSource: 10, All: 10}
	for range 2 {
		if a.MustProve(nil) {
			t.Fatal("a Retry without load")
		}
		if _, _, err := admit(t, a, from("192.0.2.1", false)); err != nil {
			t.Fatal(err)
		}
	}
	if !a.MustProve(nil) {
		t.Error("no Retry under load")
	}
	if _, _, err := admit(t, a, from("192.0.2.2", false)); err == nil {
		t.Error("a peer without a token was taken under load")
	}
	if _, _, err := admit(t, a, from("192.0.2.2", true)); err != nil {
		t.Errorf("a peer with a token was refused: %v", err)
	}
}

func TestOneSourceAndAllSourcesHaveLimits(t *testing.T) {
	for name, c := range map[string]struct {
		a     *Admission
		one   []string // admitted
		other string
		taken bool
	}{
		"one address":         {&Admission{RetryFrom: 9, PerSource: 2, All: 9}, []string{"192.0.2.1", "192.0.2.1"}, "192.0.2.1", false},
		"another address":     {&Admission{RetryFrom: 9, PerSource: 2, All: 9}, []string{"192.0.2.1", "192.0.2.1"}, "192.0.2.2", true},
		"one IPv6 network":    {&Admission{RetryFrom: 9, PerSource: 2, All: 9}, []string{"2001:db8::1", "2001:db8::2"}, "2001:db8::3", false},
		"other IPv6 networks": {&Admission{RetryFrom: 9, PerSource: 2, All: 9}, []string{"2001:db8::1", "2001:db8::2"}, "2001:db8:1::", true},
		"all":                 {&Admission{RetryFrom: 9, PerSource: 2, All: 3}, []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}, "192.0.2.4", false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, address := range c.one {
				if _, _, err := admit(t, c.a, from(address, true)); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := admit(t, c.a, from(c.other, true)); (err == nil) != c.taken {
				t.Errorf("%s: %v", c.other, err)
			}
		})
	}
}

func TestPlacesAreGivenBackOnce(t *testing.T) {
	a := &Admission{RetryFrom: 9, PerSource: 9, All: 9}
	known, end, err := admit(t, a, from("192.0.2.1", false))
	if err != nil {
		t.Fatal(err)
	}
	_, fail, err := admit(t, a, from("192.0.2.1", false))
	if err != nil {
		t.Fatal(err)
	}
	Authenticated(known)
	Authenticated(known)
	if a.Pending() != 1 {
		t.Fatalf("%d pending after authentication, want 1", a.Pending())
	}
	end()
	fail()
	for a.Pending() != 0 { // AfterFunc runs in a separate goroutine; if a place isn't released, the time-out of the test ends this loop
	}
	if len(a.sources) != 0 {
		t.Errorf("%v are still counted", a.sources)
	}
}
