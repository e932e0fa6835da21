// Package header is the header of a QUIC stream, which a QPEP terminal writes first: source and destination of the TCP connection
// (NDSS 2021 paper, section V-A). The layout is that of the original implementation:
//
//	offset  size     field
//	0       1        address family of the source: 4 or 6
//	1       1        address family of the destination: 4 or 6
//	2       4 or 16  source address, network byte order
//	…       2        source port, little-endian
//	…       4 or 16  destination address, network byte order
//	…       2        destination port, little-endian
//
// The payload of the TCP connection follows at once, in both directions. The gateway writes no header.
package header

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// MaxSize is the size of a header with two IPv6 addresses. With one IPv6 address the size is 26 bytes, with none 14 bytes.
const MaxSize = 2 + 2*(16+2)

// ErrMalformed is wrapped by the error of Read when the bytes are no header.
var ErrMalformed = errors.New("malformed stream header")

// Header has the two ends of a TCP connection. Its addresses are never IPv4-mapped (RFC 4291 §2.5.5.2).
type Header struct {
	Source      netip.AddrPort
	Destination netip.AddrPort
}

// New makes a header from addresses as sockets report them. IPv4-mapped addresses become IPv4 addresses, and zones are removed.
func New(source, destination netip.AddrPort) Header {
	return Header{plain(source), plain(destination)}
}

func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// Append adds the bytes of the header to b. Both addresses must be valid.
func (h Header) Append(b []byte) []byte {
	b = append(b, family(h.Source.Addr()), family(h.Destination.Addr()))
	for _, end := range [...]netip.AddrPort{h.Source, h.Destination} {
		b = append(b, end.Addr().AsSlice()...)
		b = binary.LittleEndian.AppendUint16(b, end.Port())
	}
	return b
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return 4
	}
	return 6
}

// Read reads exactly one header from r, which may arrive in any pieces. The error is an error of r (io.ErrUnexpectedEOF for an
// incomplete header), or wraps ErrMalformed.
func Read(r io.Reader) (Header, error) {
	var buffer [MaxSize]byte
	if _, err := io.ReadFull(r, buffer[:2]); err != nil {
		return Header{}, err
	}
	source, err := addressSize(buffer[0], "source")
	if err != nil {
		return Header{}, err
	}
	destination, err := addressSize(buffer[1], "destination")
	if err != nil {
		return Header{}, err
	}
	rest := buffer[2 : 2+source+2+destination+2]
	if _, err := io.ReadFull(r, rest); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Header{}, err
	}
	h := Header{Source: end(rest[:source+2]), Destination: end(rest[source+2:])}
	if h.Destination.Addr().Is4In6() || h.Source.Addr().Is4In6() {
		return Header{}, fmt.Errorf("%w: IPv4-mapped address", ErrMalformed)
	}
	return h, nil
}

func addressSize(family byte, which string) (int, error) {
	switch family {
	case 4:
		return 4, nil
	case 6:
		return 16, nil
	default:
		return 0, fmt.Errorf("%w: %s address of family %d", ErrMalformed, which, family)
	}
}

// end reads an address of 4 or 16 bytes and its port.
func end(b []byte) netip.AddrPort {
	address, _ := netip.AddrFromSlice(b[:len(b)-2])
	return netip.AddrPortFrom(address, binary.LittleEndian.Uint16(b[len(b)-2:]))
}
