// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v3/pkg/action"
	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/registry"
	"helm.sh/helm/v3/pkg/repo"
	"oras.land/oras-go/v2/registry/remote/auth"
	"sigs.k8s.io/yaml"
)

// maxDownload bounds an index or a chart. The largest public repository indexes
// are some 20 MiB.
const maxDownload = 256 << 20

// Chart says where a chart comes from. Nothing is written to disk, and neither
// Helm's nor Docker's files with credentials are used.
type Chart struct {
	// Ref is an OCI reference (oci://host/path/name), a URL of an archive, a path
	// of an archive or folder on this machine, or with Repository a chart's name.
	Ref string
	// Repository is the URL of a chart repository (http, https).
	Repository string
	// Version is an exact version or a constraint; empty means the newest
	// release.
	Version string
	// Username and Password are for the repository or registry.
	Username, Password string
}

func (c Chart) String() string {
	name := c.Ref
	if c.Repository != "" {
		name = c.Ref + " of " + c.Repository
	}
	if c.Version != "" {
		name += " " + c.Version
	}
	return name
}

// Check answers what is wrong with Ref and Repository, without looking them up.
func (c Chart) Check() error {
	remote := registry.IsOCI(c.Ref) || strings.Contains(c.Ref, "://")
	switch {
	case c.Ref == "":
		return errors.New("no chart is given")
	case remote && c.Repository != "":
		return fmt.Errorf("the chart %s and the repository %s exclude one another: with a repository the chart is its name there", c.Ref, c.Repository)
	case registry.IsOCI(c.Repository):
		return fmt.Errorf("a registry needs no repository: give the chart as %s/%s", strings.TrimSuffix(c.Repository, "/"), c.Ref)
	case c.Repository != "" && !strings.HasPrefix(c.Repository, "https://") && !strings.HasPrefix(c.Repository, "http://"):
		return fmt.Errorf("the repository %q is not a URL such as https://charts.example", c.Repository)
	case remote && !registry.IsOCI(c.Ref) && !strings.HasPrefix(c.Ref, "https://") && !strings.HasPrefix(c.Ref, "http://"):
		return fmt.Errorf("the chart %q starts neither with oci:// nor with https://", c.Ref)
	}
	return nil
}

// CheckVersion answers what is wrong with a version or constraint.
func CheckVersion(version string) error {
	if isExact(version) {
		return nil
	}
	if _, err := semver.NewConstraint(version); err != nil {
		return fmt.Errorf("%q is neither a version such as 1.2.3 nor a constraint such as ~1.2: %w", version, err)
	}
	return nil
}

// CheckName answers what is wrong with a release's name.
func CheckName(name string) error {
	if err := chartutil.ValidateReleaseName(name); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	return nil
}

func (c Chart) load(ctx context.Context) (*helmchart.Chart, error) {
	var chart *helmchart.Chart
	var err error
	switch {
	case c.Repository != "":
		chart, err = c.fromRepository(ctx)
	case registry.IsOCI(c.Ref):
		chart, err = c.fromRegistry(ctx)
	case strings.HasPrefix(c.Ref, "https://"), strings.HasPrefix(c.Ref, "http://"):
		chart, err = c.fromURL(ctx, c.Ref)
	default:
		chart, err = loader.Load(c.Ref)
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("no chart archive or folder %s on this machine (a chart of a registry starts with oci://, one of a repository needs the repository's URL)", c.Ref)
		}
	}
	if err != nil {
		return nil, err
	}
	return chart, c.check(chart)
}

// check refuses a chart that cannot be installed or is not the one asked for.
func (c Chart) check(chart *helmchart.Chart) error {
	if err := chart.Validate(); err != nil {
		return err
	}
	if kind := chart.Metadata.Type; kind != "" && kind != "application" {
		return fmt.Errorf("a chart of type %s cannot be installed", kind)
	}
	if err := action.CheckDependencies(chart, chart.Metadata.Dependencies); err != nil {
		return fmt.Errorf("the chart is incomplete: %w", err)
	}
	if !fits(chart.Metadata.Version, c.Version) {
		return fmt.Errorf("the chart has the version %s, not %s", chart.Metadata.Version, c.Version)
	}
	return nil
}

// fits says whether a chart's version is what was asked for: the same, with or
// without a leading v, or within the constraint.
func fits(version, wanted string) bool {
	if wanted == "" || strings.TrimPrefix(version, "v") == strings.TrimPrefix(wanted, "v") {
		return true
	}
	constraint, err := semver.NewConstraint(wanted)
	if err != nil || isExact(wanted) {
		return false
	}
	parsed, err := semver.NewVersion(version)
	return err == nil && constraint.Check(parsed)
}

func (c Chart) fromRegistry(ctx context.Context) (*helmchart.Chart, error) {
	ref := strings.TrimPrefix(c.Ref, registry.OCIScheme+"://")
	host, _, ok := strings.Cut(ref, "/")
	if !ok {
		return nil, fmt.Errorf("%s has no path after the registry's name", c.Ref)
	}
	authorizer := auth.Client{Client: &http.Client{Transport: boundTransport{ctx, http.DefaultTransport}}, Cache: auth.NewCache()}
	if c.Username != "" {
		authorizer.Credential = auth.StaticCredential(host, auth.Credential{Username: c.Username, Password: c.Password})
	}
	options := []registry.ClientOption{registry.ClientOptAuthorizer(authorizer)}
	if isLoopback(host) {
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
	if c.Username != "" && c.trusts(request.URL) {
		request.SetBasicAuth(c.Username, c.Password)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", request.URL.Redacted(), response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxDownload+1))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", request.URL.Redacted(), err)
	}
	if len(data) > maxDownload {
		return nil, fmt.Errorf("GET %s: more than %d MiB", request.URL.Redacted(), maxDownload>>20)
	}
	return data, nil
}

func (c Chart) trusts(target *url.URL) bool {
	given := c.Repository
	if given == "" {
		given = c.Ref
	}
	home, err := url.Parse(given)
	return err == nil && home.Scheme == target.Scheme && home.Host == target.Host
}
