package header

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"testing"
	"testing/iotest"
)

// The bytes are written by hand from the layout of the original implementation, not by Append.
var known = []struct {
	name, source, destination, wire string
}{
	{"v4 to v4", "10.0.0.2:51000", "93.184.216.34:443", "0404" + "0a000002" + "38c7" + "5db8d822" + "bb01"},
	{"v4 to v6", "10.0.0.2:1", "[2001:db8::1]:80", "0406" + "0a000002" + "0100" + "20010db8000000000000000000000001" + "5000"},
	{"v6 to v4", "[2001:db8::2]:256", "192.0.2.1:8080", "0604" + "20010db8000000000000000000000002" + "0001" + "c0000201" + "901f"},
	{"v6 to v6", "[2001:db8::2]:65535", "[2001:db8::1]:22", "0606" + "20010db8000000000000000000000002" + "ffff" +
		"20010db8000000000000000000000001" + "1600"},
}

func TestWireFormat(t *testing.T) {
	for _, c := range known {
		t.Run(c.name, func(t *testing.T) {
			h := New(netip.MustParseAddrPort(c.source), netip.MustParseAddrPort(c.destination))
			if wire := hex.EncodeToString(h.Append(nil)); wire != c.wire {
				t.Errorf("wrote %s, want %s", wire, c.wire)
			}
			wire, _ := hex.DecodeString(c.wire)
			rest := bytes.NewReader(append(wire, "payload"...))
			read, err := Read(iotest.OneByteReader(rest))
			if err != nil || read != h {
				t.Errorf("read %v, %v; want %v", read, err, h)
			}
			if payload, _ := io.ReadAll(rest); string(payload) != "payload" {
				t.Errorf("left %q for the relay, want the payload", payload)
			}
		})
	}
}

func TestMappedAddressesAreWrittenAsIPv4(t *testing.T) {
	mapped := netip.MustParseAddrPort("[::ffff:192.0.2.1]:80")
	if size := len(New(mapped, mapped).Append(nil)); size != 14 {
		t.Errorf("header of %d bytes, want 14", size)
	}
}

func TestMalformed(t *testing.T) {
	for name, wire := range map[string]string{
		"unknown source family":      "0004",
		"unknown destination family": "0405",
		"IPv4-mapped destination":    "0406" + "0a000002" + "0100" + "00000000000000000000ffff7f000001" + "5000",
	} {
		t.Run(name, func(t *testing.T) {
			bytesOf, _ := hex.DecodeString(wire)
			if _, err := Read(bytes.NewReader(bytesOf)); !errors.Is(err, ErrMalformed) {
				t.Errorf("error %v, want one that says malformed", err)
			}
		})
	}
}

func TestCut(t *testing.T) {
	wire, _ := hex.DecodeString(known[3].wire)
	for size := range wire {
		want := io.ErrUnexpectedEOF
		if size == 0 {
			want = io.EOF
		}
		if _, err := Read(bytes.NewReader(wire[:size])); !errors.Is(err, want) {
			t.Errorf("%d bytes: error %v, want %v", size, err, want)
		}
	}
}

// A header that was read is written as the same bytes, and no byte after the header is consumed.
func FuzzRead(f *testing.F) {
	for _, c := range known {
		wire, _ := hex.DecodeString(c.wire)
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := bytes.NewReader(wire)
		h, err := Read(r)
		if err != nil {
			return
		}
		taken := wire[:len(wire)-r.Len()]
		if !bytes.Equal(h.Append(nil), taken) {
			t.Errorf("read %x, wrote %x", taken, h.Append(nil))
		}
		if New(h.Source, h.Destination) != h {
			t.Errorf("%v isn't plain", h)
		}
	})
}
