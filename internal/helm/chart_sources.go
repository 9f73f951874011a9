// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/Masterminds/semver/v3"
	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/registry"
	"helm.sh/helm/v3/pkg/repo"
	"oras.land/oras-go/v2/registry/remote/auth"
	"sigs.k8s.io/yaml"
)

// maxDownload bounds an index or a chart. The largest public repository indexes
// are some 20 MiB.
const maxDownload = 256 << 20

func (c Chart) fromRegistry(ctx context.Context) (*helmchart.Chart, error) {
	ref := strings.TrimPrefix(c.Ref, registry.OCIScheme+"://")
	host, _, ok := strings.Cut(ref, "/")
	if !ok {
		return nil, fmt.Errorf("%s has no path after the registry's name", c.Ref)
	}
	login := c.login(registry.OCIScheme, host)
	transport, err := login.transport()
	if err != nil {
		return nil, fmt.Errorf("the certificate authorities for %s: %w", host, err)
	}
	authorizer := auth.Client{Client: &http.Client{Transport: boundTransport{ctx, transport}}, Cache: auth.NewCache()}
	if login.Username != "" {
		authorizer.Credential = auth.StaticCredential(host, auth.Credential{Username: login.Username, Password: login.Password})
	}
	options := []registry.ClientOption{registry.ClientOptAuthorizer(authorizer)}
	if isLoopback(host) && login.CAPEM == "" {
		// As container engines do: a registry on this machine needs no certificate.
		options = append(options, registry.ClientOptPlainHTTP())
	}
	client, err := registry.NewClient(options...)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(ref, "@") {
		tag, err := registryTag(client, ref, c.Version)
		if err != nil {
			return nil, withCause(ctx, err)
		}
		ref += ":" + tag
	}
	pulled, err := client.Pull(ref, registry.PullOptWithChart(true))
	if err != nil {
		return nil, withCause(ctx, fmt.Errorf("pulling it: %w", err))
	}
	return loader.LoadArchive(bytes.NewReader(pulled.Chart.Data))
}

// registryTag answers the tag of an exact version without asking for all tags,
// and else the newest tag that fits.
func registryTag(client *registry.Client, ref, version string) (string, error) {
	if isExact(version) {
		return version, nil
	}
	tags, err := client.Tags(ref)
	if err != nil {
		return "", fmt.Errorf("listing its versions: %w", err)
	}
	tag, err := registry.GetTagMatchingVersionOrConstraint(tags, version)
	if err != nil {
		return "", fmt.Errorf("choosing among its %d versions: %w", len(tags), err)
	}
	return tag, nil
}

// isExact says whether a version is one and not a constraint.
func isExact(version string) bool {
	_, err := semver.StrictNewVersion(strings.TrimPrefix(version, "v"))
	return err == nil
}

func isLoopback(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	addr, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return name == "localhost" || err == nil && addr.IsLoopback()
}

func (c Chart) fromRepository(ctx context.Context) (*helmchart.Chart, error) {
	base := strings.TrimSuffix(c.Repository, "/")
	data, err := c.get(ctx, base+"/index.yaml")
	if err != nil {
		return nil, fmt.Errorf("reading the repository's index: %w", err)
	}
	index := repo.NewIndexFile()
	if err := yaml.UnmarshalStrict(data, index); err != nil && yaml.Unmarshal(data, index) != nil {
		return nil, errors.New("the repository's index is not one of Helm's")
	}
	index.SortEntries()
	found, err := index.Get(c.Ref, c.Version)
	if err != nil {
		return nil, fmt.Errorf("looking up %s in the repository's index: %w", c.Ref, err)
	}
	if len(found.URLs) == 0 {
		return nil, errors.New("the repository's index has no URL for it")
	}
	target, err := repo.ResolveReferenceURL(base+"/", found.URLs[0])
	if err != nil {
		return nil, fmt.Errorf("reading the URL in the repository's index: %w", err)
	}
	return c.fromURL(ctx, target)
}

func (c Chart) fromURL(ctx context.Context, target string) (*helmchart.Chart, error) {
	data, err := c.get(ctx, target)
	if err != nil {
		return nil, err
	}
	return loader.LoadArchive(bytes.NewReader(data))
}

// get downloads into memory. Helm's own getters take no context. Credentials go
// only to the host that they were given for.
func (c Chart) get(ctx context.Context, target string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	login := c.login(request.URL.Scheme, request.URL.Host)
	if login.Username != "" {
		request.SetBasicAuth(login.Username, login.Password)
	}
	transport, err := login.transport()
	if err != nil {
		return nil, fmt.Errorf("the certificate authorities for %s: %w", request.URL.Host, err)
	}
	shown := shownURL(request.URL)
	response, err := (&http.Client{Transport: transport, CheckRedirect: staysSecret}).Do(request)
	var failed *url.Error
	if errors.As(err, &failed) {
		return nil, fmt.Errorf("GET %s: %w", shown, failed.Err)
	}
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", shown, response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxDownload+1))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", shown, err)
	}
	if len(data) > maxDownload {
		return nil, fmt.Errorf("GET %s: more than %d MiB", shown, maxDownload>>20)
	}
	return data, nil
}

// shownURL is a URL for people. The query of a signed one is a secret.
func shownURL(target *url.URL) string {
	public := *target
	if public.RawQuery != "" {
		public.RawQuery = "..."
	}
	return public.Redacted()
}

// maxRedirects is what Go's own client follows.
const maxRedirects = 10

// staysSecret refuses to follow a server from HTTPS to HTTP, where Go's client
// would send the credentials along in clear text.
func staysSecret(next *http.Request, before []*http.Request) error {
	if next.URL.Scheme != "https" && before[0].URL.Scheme == "https" {
		return fmt.Errorf("it leads from HTTPS to %s, which is not followed", shownURL(next.URL))
	}
	if len(before) >= maxRedirects {
		return fmt.Errorf("it has led on %d times", maxRedirects)
	}
	return nil
}

// login answers how to get into a host that is asked with a scheme. Passwords
// travel in clear text to this machine alone.
func (c Chart) login(scheme, host string) Login {
	found := c.Logins[host]
	if scheme == "http" && !isLoopback(host) {
		found.Username, found.Password = "", ""
	}
	given := c.Repository
	if given == "" {
		given = c.Ref
	}
	home, err := url.Parse(given)
	if err == nil && c.Username != "" && home.Scheme == scheme && home.Host == host {
		found.Username, found.Password = c.Username, c.Password
	}
	return found
}

// transport answers one that trusts the host's certificate.
func (l Login) transport() (http.RoundTripper, error) {
	if l.CAPEM == "" {
		return http.DefaultTransport, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(l.CAPEM)) {
		return nil, errors.New("they hold no certificate in PEM form")
	}
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, fmt.Errorf("the default transport is a %T", http.DefaultTransport)
	}
	transport = transport.Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return transport, nil
}
