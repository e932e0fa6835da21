// Package carrier is what two proxies need to talk QUIC (RFC 9000) over a long fat link: options, trust, logs.
package carrier
