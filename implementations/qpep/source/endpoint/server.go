package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"strings"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"bentpipe/carrier"
)

// Server serves the files of one folder, or writes uploads into it.
type Server struct {
	Folder *os.Root
	TLS    *tls.Config
	QUIC   *quic.Config
}

// Serve answers requests on socket until ctx ends.
func (s *Server) Serve(ctx context.Context, testCase string, socket net.PacketConn) error {
	if err := prepare(testCase); err != nil {
		return err
	}
	switch testCase {
	case "handshake", "transfer", "multiconnect", "chacha20", "retry", "resumption", "zerortt", "ecn", "versionnegotiation":
		return s.serveHTTP09(ctx, socket, testCase)
	case "http3":
		return s.serveHTTP3(ctx, socket, http.FileServerFS(s.Folder.FS()))
	case "upload":
		return s.serveHTTP3(ctx, socket, http.HandlerFunc(s.store))
	default:
		return carrier.ErrUnsupported
	}
}

// store answers a PUT when the file is complete.
func (s *Server) store(response http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodPut {
		http.Error(response, "only PUT", http.StatusMethodNotAllowed)
		return
	}
	file, err := s.Folder.Create(path.Base(request.URL.Path))
	if err == nil {
		_, err = io.CopyBuffer(struct{ io.Writer }{file}, request.Body, make([]byte, 256<<10))
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		slog.Warn("not stored", "reason", err)
		http.Error(response, "not stored", http.StatusInternalServerError)
		return
	}
	response.WriteHeader(http.StatusCreated)
}

func (s *Server) serveHTTP3(ctx context.Context, socket net.PacketConn, handler http.Handler) error {
	server := &http3.Server{Handler: handler, TLSConfig: http3.ConfigureTLSConfig(s.TLS), QUICConfig: s.QUIC}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err := server.Serve(socket)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Server) serveHTTP09(ctx context.Context, socket net.PacketConn, testCase string) error {
	config := s.QUIC.Clone()
	config.Allow0RTT = testCase == "zerortt"
	tlsConfig := s.TLS.Clone()
	tlsConfig.NextProtos = []string{protocol}
	transport := &quic.Transport{Conn: socket}
	if testCase == "retry" {
		transport.VerifySourceAddress = func(net.Addr) bool { return true }
	}
	defer transport.Close()
	listener, err := transport.ListenEarly(tlsConfig, config)
	if err != nil {
		return err
	}
	for {
		connection, err := listener.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go s.serveConnection(connection)
	}
}

func (s *Server) serveConnection(connection *quic.Conn) {
	for {
		stream, err := connection.AcceptStream(context.Background())
		if err != nil {
			return
		}
		go func() {
			if err := s.answer(stream); err != nil {
				slog.Warn("not served", "reason", err)
			}
		}()
	}
}

// maxRequest is the largest request in bytes; it limits the memory that a client can use.
const maxRequest = 4 << 10

const notFound, badRequest quic.StreamErrorCode = 404, 400

func (s *Server) answer(stream *quic.Stream) error {
	request, err := io.ReadAll(io.LimitReader(stream, maxRequest))
	if err != nil {
		return err
	}
	name, isGet := strings.CutPrefix(strings.TrimRight(string(request), "\r\n "), "GET /")
	if !isGet {
		stream.CancelWrite(badRequest)
		return errors.New("a request that is no GET")
	}
	file, err := s.Folder.Open(name)
	if err != nil {
		stream.CancelWrite(notFound)
		return err
	}
	defer file.Close()
	if _, err := io.CopyBuffer(struct{ io.Writer }{stream}, struct{ io.Reader }{file}, make([]byte, 256<<10)); err != nil {
		return err
	}
	return stream.Close()
}
