package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"golang.org/x/sync/errgroup"

	"bentpipe/carrier"
)

// Client downloads files into one folder, or uploads the files of this folder.
type Client struct {
	Folder *os.Root
	TLS    *tls.Config
	QUIC   *quic.Config
}

// ticketTimeout is the longest wait for a session ticket after the first download.
const ticketTimeout = 10 * time.Second

// Fetch downloads all URLs in the way that the test case requires.
func (c *Client) Fetch(ctx context.Context, testCase string, urls []*url.URL) error {
	if err := prepare(testCase); err != nil {
		return err
	}
	if len(urls) == 0 {
		return errors.New("REQUESTS names no URL")
	}
	switch testCase {
	case "handshake", "transfer", "chacha20", "retry", "keyupdate", "ecn":
		return c.fetchOnce(ctx, urls, quic.DialAddr)
	case "multiconnect":
		for _, u := range urls {
			if err := c.fetchOnce(ctx, []*url.URL{u}, quic.DialAddr); err != nil {
				return err
			}
		}
		return nil
	case "resumption":
		return c.fetchTwice(ctx, urls, quic.DialAddr)
	case "zerortt":
		return c.fetchTwice(ctx, urls, quic.DialAddrEarly)
	case "http3":
		return c.inParallel(ctx, urls, c.fetchHTTP3)
	case "upload":
		return c.inParallel(ctx, urls, c.upload)
	default:
		return carrier.ErrUnsupported
	}
}

type dialFunc func(context.Context, string, *tls.Config, *quic.Config) (*quic.Conn, error)

// fetchOnce downloads all URLs at once over one connection.
func (c *Client) fetchOnce(ctx context.Context, urls []*url.URL, dial dialFunc) error {
	config := c.TLS.Clone()
	config.NextProtos = []string{protocol}
	config.ServerName = urls[0].Hostname()
	connection, err := dial(ctx, urls[0].Host, config, c.QUIC)
	if err != nil {
		return err
	}
	defer func() { _ = connection.CloseWithError(0, "") }()
	group, ctx := errgroup.WithContext(ctx)
	for _, u := range urls {
		group.Go(func() error { return c.get(ctx, connection, u) })
	}
	return group.Wait()
}

// fetchTwice downloads the first URL, then the others over a second connection that resumes the session of the first.
func (c *Client) fetchTwice(ctx context.Context, urls []*url.URL, dial dialFunc) error {
	if len(urls) < 2 {
		return errors.New("resumption needs at least two URLs")
	}
	tickets := &ticketCache{ClientSessionCache: tls.NewLRUClientSessionCache(1), came: make(chan struct{}, 1)}
	c.TLS.ClientSessionCache = tickets
	if err := c.fetchOnce(ctx, urls[:1], quic.DialAddr); err != nil {
		return err
	}
	select {
	case <-tickets.came:
	case <-time.After(ticketTimeout):
		return fmt.Errorf("no session ticket within %s", ticketTimeout)
	}
	return c.fetchOnce(ctx, urls[1:], dial)
}

type ticketCache struct {
	tls.ClientSessionCache
	came chan struct{}
}

func (t *ticketCache) Put(key string, session *tls.ClientSessionState) {
	t.ClientSessionCache.Put(key, session)
	select {
	case t.came <- struct{}{}:
	default:
	}
}

func (c *Client) get(ctx context.Context, connection *quic.Conn, u *url.URL) error {
	stream, err := connection.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(stream, "GET %s\r\n", u.Path); err != nil {
		return err
	}
	if err := stream.Close(); err != nil {
		return err
	}
	return c.save(u, stream)
}

func (c *Client) save(u *url.URL, body io.Reader) error {
	file, err := c.Folder.Create(path.Base(u.Path))
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := io.CopyBuffer(struct{ io.Writer }{file}, body, make([]byte, 256<<10)); err != nil {
		return fmt.Errorf("%s: %w", u.Path, err)
	}
	return file.Close()
}

type exchange func(context.Context, http.RoundTripper, *url.URL) error

// inParallel runs one exchange over HTTP/3 for each URL, all over one connection.
func (c *Client) inParallel(ctx context.Context, urls []*url.URL, once exchange) error {
	transport := &http3.Transport{TLSClientConfig: c.TLS, QUICConfig: c.QUIC}
	defer transport.Close()
	group, ctx := errgroup.WithContext(ctx)
	for _, u := range urls {
		group.Go(func() error { return once(ctx, transport, u) })
	}
	return group.Wait()
}

func (c *Client) fetchHTTP3(ctx context.Context, transport http.RoundTripper, u *url.URL) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", u.Path, response.Status)
	}
	return c.save(u, response.Body)
}

func (c *Client) upload(ctx context.Context, transport http.RoundTripper, u *url.URL) error {
	file, err := c.Folder.Open(path.Base(u.Path))
	if err != nil {
		return err
	}
	defer file.Close()
	information, err := file.Stat()
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, u.String(), file)
	if err != nil {
		return err
	}
	request.ContentLength = information.Size()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s", u.Path, response.Status)
	}
	return nil
}
