package carrier

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"os"
	"strings"
	"time"
)

// Trust has our certificate and the rules for the peer's certificate. Both sides authenticate (mutual TLS), by CA or by pinned
// key. Only Anyone switches this off.
type Trust struct {
	Certificate string // PEM file, leaf first
	Key         string // PEM file
	CA          string // PEM file of the authorities of the other side's certificate
	Peer        string // DNS name in the other side's certificate
	Pins        string // "sha256/BASE64" of the other side's public key (RFC 7469 §2.4), separated by commas; instead of CA
	Anyone      bool   // no authentication of either side
	Anonymous   bool   // the listening side doesn't request our certificate; set by programs, there is no flag
}

const anyoneFlag = "insecure-anyone"

// Register adds the flags, whose names begin with prefix.
func (t *Trust) Register(flags *flag.FlagSet, prefix string) {
	flags.StringVar(&t.Certificate, prefix+"certificate", t.Certificate, "PEM `file` with our certificate")
	flags.StringVar(&t.Key, prefix+"key", t.Key, "PEM `file` with its key")
	flags.StringVar(&t.CA, prefix+"ca", t.CA, "PEM `file` with the authority that signs the other side's certificate")
	flags.StringVar(&t.Peer, prefix+"peer", t.Peer, "`name` that the other side's certificate must carry")
	flags.StringVar(&t.Pins, prefix+"pin", t.Pins, "public key of the other side as `sha256/BASE64`, in place of -ca; several with commas")
	flags.BoolVar(&t.Anyone, prefix+anyoneFlag, t.Anyone, "INSECURE: talk to anyone, as the original QPEP does")
}

// Client makes the TLS configuration of the side that dials.
func (t Trust) Client(logs *Logs, protocols ...string) (*tls.Config, error) {
	config, err := t.common(logs, protocols)
	if err != nil {
		return nil, err
	}
	config.ServerName = t.Peer
	config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	// The verification below replaces that of crypto/tls, for all three kinds of trust.
	config.InsecureSkipVerify = true
	return config, nil
}

// Server makes the TLS configuration of the side that listens.
func (t Trust) Server(logs *Logs, protocols ...string) (*tls.Config, error) {
	config, err := t.common(logs, protocols)
	if err != nil {
		return nil, err
	}
	if !t.Anyone {
		config.ClientAuth = tls.RequireAnyClientCert
	}
	if len(config.Certificates) == 0 {
		certificate, err := throwAway(t.Peer)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}

func (t Trust) common(logs *Logs, protocols []string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: protocols, KeyLogWriter: logs.KeyLog()}
	if t.Certificate != "" || t.Key != "" {
		certificate, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
		if err != nil {
			return nil, fmt.Errorf("our certificate -certificate %q with -key %q can't be used: %w", t.Certificate, t.Key, err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	if t.Anyone {
		return config, nil
	}
	if len(config.Certificates) == 0 && !t.Anonymous {
		return nil, errors.New("the other side wants to know who we are: give -certificate and -key, or -" + anyoneFlag)
	}
	verify, err := t.verifier()
	// Unlike VerifyPeerCertificate, VerifyConnection is also called for resumed sessions.
	config.VerifyConnection = verify
	return config, err
}

func (t Trust) verifier() (func(tls.ConnectionState) error, error) {
	if t.Pins != "" {
		pins, err := parsePins(t.Pins)
		return func(state tls.ConnectionState) error { return checkPins(state, pins) }, err
	}
	if t.CA == "" || t.Peer == "" {
		return nil, errors.New("nobody says whom to believe: give -ca with -peer, or -pin, or -" + anyoneFlag)
	}
	text, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, fmt.Errorf("the authority -ca can't be read: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("-ca %s holds no certificate in PEM", t.CA)
	}
	return func(state tls.ConnectionState) error { return checkChain(state, roots, t.Peer) }, nil
}

// checkChain verifies the chain up to one of roots (RFC 5280 §6) and the name (RFC 6125 §6.4).
func checkChain(state tls.ConnectionState, roots *x509.CertPool, name string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the other side has no certificate")
	}
	between := x509.NewCertPool()
	for _, certificate := range state.PeerCertificates[1:] {
		between.AddCert(certificate)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, DNSName: name, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err
}

func checkPins(state tls.ConnectionState, pins [][]byte) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the other side has no certificate")
	}
	digest := sha256.Sum256(state.PeerCertificates[0].RawSubjectPublicKeyInfo)
	for _, pin := range pins {
		if subtle.ConstantTimeCompare(pin, digest[:]) == 1 {
			return nil
		}
	}
	return fmt.Errorf("the other side's key sha256/%s is not pinned", base64.StdEncoding.EncodeToString(digest[:]))
}

func parsePins(text string) ([][]byte, error) {
	var pins [][]byte
	for _, pin := range strings.Split(text, ",") {
		digest, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(pin), "sha256/"))
		if err != nil || len(digest) != sha256.Size {
			return nil, fmt.Errorf("-pin %q is not sha256/ and the base64 of 32 bytes", pin)
		}
		pins = append(pins, digest)
	}
	return pins, nil
}

// throwAway makes a certificate for a listener that no peer verifies.
func throwAway(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// Pin returns the value for Trust.Pins of the first certificate in a PEM file.
func Pin(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return "", fmt.Errorf("%s doesn't start with a certificate in PEM", file)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	digest := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
	return "sha256/" + base64.StdEncoding.EncodeToString(digest[:]), nil
}
