// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package proxmox makes templates and service accounts on Proxmox VE through
// its REST API alone, and removes virtual machines after proving their
// identity. It rests on github.com/luthermonson/go-proxmox; where that
// library's typed methods send zero values that Proxmox VE would take as wishes
// (v0.9.0: UpdateAPIToken turns privilege separation off, NewUser disables the
// user, UpdateACL stops propagation), its plain Get, Post, Put and Delete are
// used.
package proxmox

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	pve "github.com/luthermonson/go-proxmox"
)

// Config says where Proxmox VE answers and as whom to work there.
type Config struct {
	// Endpoint is the API's address. What people paste works: with or without
	// scheme, port (8006) and the path /api2/json.
	Endpoint string
	// TokenID ("user@realm!name") and TokenSecret log in with an API token.
	TokenID     string
	TokenSecret string
	// Username ("user@realm") and Password log in where there is no token. A
	// ticket does as the password.
	Username string
	Password string
	// OTP is the second factor of Username, where it has one: the six digits of
	// a TOTP application, or "recovery:KEY". Proxmox VE takes it once.
	OTP string
	// CAPEM holds the certificates that the API's is checked against; empty
	// means those of the system.
	CAPEM string
	// Fingerprint is the SHA-256 fingerprint of the API's certificate. It is
	// checked beside CAPEM where there is one, else instead of any authority.
	Fingerprint string
	// Insecure turns the check of the certificate off.
	Insecure bool
	// Timeouts bound how long Proxmox VE may be silent.
	Timeouts Timeouts
	// UserAgent is sent with each request.
	UserAgent string
	// PollInterval is the time between two looks at a running task; zero means
	// one second. The waits between retries follow from it.
	PollInterval time.Duration
	// Lease is how long a run that makes something may be silent before another
	// takes it over; zero means 30 seconds.
	Lease time.Duration
	// Transport, when set, is used instead of one made from CAPEM and Insecure.
	Transport http.RoundTripper

	// now is this machine's clock; nil means time.Now.
	now func() time.Time
}

// Client works on one Proxmox VE, cluster or single node. It is safe for
// concurrent use.
type Client struct {
	config    Config
	base      string
	transport http.RoundTripper
	api       *pve.Client
	peer      *peer
	clock     *clock

	versionLock sync.Mutex
	version     Version

	login login
}

// New makes a client. Nothing is dialled; the error is about the configuration.
func New(config Config) (*Client, error) {
	endpoint, err := normalEndpoint(config.Endpoint)
	if err != nil {
		return nil, err
	}
	if config.PollInterval <= 0 {
		config.PollInterval = time.Second
	}
	if config.Lease <= 0 {
		config.Lease = defaultLease
	}
	if config.now == nil {
		config.now = time.Now
	}
	c := &Client{config: config, base: endpoint, transport: config.Transport, peer: &peer{}, clock: &clock{local: config.now}}
	if c.transport == nil {
		if c.transport, err = newTransport(config, c.peer); err != nil {
			return nil, err
		}
	}
	c.transport = dated{RoundTripper: c.transport, clock: c.clock}
	c.api = c.newAPI(c.transport)
	return c, nil
}

// Endpoint answers the address of the API without a path, in the form that
// Cluster API's Proxmox provider takes: "https://pve.example:8006".
func (c *Client) Endpoint() string { return c.base }

// Identity answers who works: the token's id, else the user.
func (c *Client) Identity() string {
	if c.config.TokenID != "" {
		return c.config.TokenID
	}
	return c.config.Username
}

func (c *Client) newAPI(transport http.RoundTripper) *pve.Client {
	options := []pve.Option{
		pve.WithHTTPClient(&http.Client{Transport: transport}),
		pve.WithUserAgent(c.config.UserAgent),
	}
	if c.config.TokenID != "" {
		options = append(options, pve.WithAPIToken(c.config.TokenID, c.config.TokenSecret))
	} else {
		options = append(options, pve.WithRequestInterceptor(c.login.sign))
	}
	return pve.NewClient(c.base+apiRoot, options...)
}

// Version is a release of Proxmox VE.
type Version struct{ Major, Minor int }

// AtLeast says whether v is this release or a newer one.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || (v.Major == major && v.Minor >= minor)
}

// String answers "9.2".
func (v Version) String() string { return strconv.Itoa(v.Major) + "." + strconv.Itoa(v.Minor) }

// Version asks for the release, once.
func (c *Client) Version(ctx context.Context) (Version, error) {
	c.versionLock.Lock()
	defer c.versionLock.Unlock()
	if c.version.Major > 0 {
		return c.version, nil
	}
	var answer pve.Version
	if err := c.get(ctx, "/version", nil, &answer); err != nil {
		return Version{}, fmt.Errorf("asking Proxmox VE at %s for its version: %w", c.base, err)
	}
	version, err := parseVersion(answer.Version)
	if err != nil {
		return Version{}, err
	}
	c.version = version
	return version, nil
}

// parseVersion reads what /version calls version, "9.2.11" or "8.4-1"; its
// release is no substitute, which says "8.4" on some and "8" on others.
func parseVersion(text string) (Version, error) {
	fields := strings.FieldsFunc(text, func(r rune) bool { return r == '.' || r == '-' || r == '~' })
	if len(fields) >= 2 {
		major, err1 := strconv.Atoi(fields[0])
		minor, err2 := strconv.Atoi(fields[1])
		if err1 == nil && err2 == nil {
			return Version{Major: major, Minor: minor}, nil
		}
	}
	return Version{}, fmt.Errorf("the version %q of Proxmox VE is not understood", text)
}

// truth is a boolean that Proxmox VE writes as a number, and elsewhere as a text.
type truth bool

// UnmarshalJSON reads 1, "1" and true; all else is false.
func (t *truth) UnmarshalJSON(raw []byte) error {
	text := strings.Trim(string(raw), `"`)
	*t = truth(text == "1" || text == "true")
	return nil
}

// params are the parameters of a call.
type params map[string]any

// body answers the parameters in the form the library wants: no parameters are
// an untyped nil, since a nil map would be sent as the text "null".
func (p params) body() any {
	if p == nil {
		return nil
	}
	return map[string]any(p)
}

func (c *Client) get(ctx context.Context, path string, query params, out any) error {
	return c.retry(ctx, true, func() error {
		return c.api.GetWithParams(ctx, path, query.body(), out)
	})
}

// put changes something to a given state, so that doing it twice does no harm.
func (c *Client) put(ctx context.Context, path string, body params, out any) error {
	return c.retry(ctx, true, func() error { return c.api.Put(ctx, path, body.body(), out) })
}

// post makes something: after a lost answer nobody knows whether it was made,
// so it is repeated only where the request was surely not carried out.
func (c *Client) post(ctx context.Context, path string, body params, out any) error {
	return c.retry(ctx, false, func() error { return c.api.Post(ctx, path, body.body(), out) })
}

// remove deletes. A repeated call answers that the thing does not exist, which
// the callers take as done.
func (c *Client) remove(ctx context.Context, path string, query params, out any) error {
	return c.retry(ctx, true, func() error { return c.api.DeleteWithParams(ctx, path, query.body(), out) })
}

// wait waits for a task. An empty UPID is a call that needed none.
func (c *Client) wait(ctx context.Context, upid string) error {
	if upid == "" {
		return nil
	}
	if strings.Count(upid, ":") < 8 {
		return fmt.Errorf("the task id %q is not understood", upid)
	}
	task := pve.NewTask(pve.UPID(upid), c.api)
	longest := 24 * time.Hour
	if deadline, ok := ctx.Deadline(); ok {
		longest = time.Until(deadline) + c.config.PollInterval
	}
	return c.retry(ctx, true, func() error { return task.Wait(ctx, c.config.PollInterval, longest) })
}
