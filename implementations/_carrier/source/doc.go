// Package carrier has the common parts of two proxies that use QUIC (RFC 9000) over a satellite link: options, trust, logs.
package carrier
