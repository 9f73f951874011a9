// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/config"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/repository"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/yamlprocessor"
	"sigs.k8s.io/yaml"
)

const (
	metadataFile = "metadata.yaml"

	// largestFile ends the reading of something that is no components file; the
	// largest in use, Cluster API's own, has about 2 MB.
	largestFile = 32 << 20

	downloadAttempts = 4
)

// release is one release of one provider: a folder of files. It stands in for
// clusterctl's repositories, which keep package-level maps that concurrent use
// corrupts (repository_github.go, v1.14.2), look for override files in the
// user's home and read tokens and proxies from the environment.
type release struct {
	provider config.Provider
	version  string
	location *url.URL
	config   config.Client
	read     map[string][]byte
}

var (
	_ repository.Client           = &release{}
	_ repository.ComponentsClient = releaseComponents{}
	_ repository.MetadataClient   = releaseMetadata{}
	_ repository.TemplateClient   = noTemplates{}
)

func newRelease(p config.Provider, client config.Client) (*release, error) {
	location, err := url.Parse(p.URL())
	if err != nil {
		return nil, fmt.Errorf("the URL of %s is not valid", p.Name())
	}
	return &release{provider: p, version: path.Base(path.Dir(location.Path)), location: location, config: client, read: map[string][]byte{}}, nil
}

// openRelease answers the release of a provider. Its components are rendered
// with the given variables.
func openRelease(ctx context.Context, p Provider, source Source, variables map[string]string) (*release, error) {
	settings, err := configuration(ctx, []Provider{p}, nil, 0, source, variables)
	if err != nil {
		return nil, err
	}
	configured, err := settings.Providers().Get(p.Name, p.Type)
	if err != nil {
		return nil, fmt.Errorf("configuring clusterctl for %s: %w", p, err)
	}
	return newRelease(configured, settings)
}

// componentsFile is the name of the components file.
func (r *release) componentsFile() string { return path.Base(r.location.Path) }

// Name, URL, Type, ManifestLabel, SameAs and Less are those of the provider.
func (r *release) Name() string                      { return r.provider.Name() }
func (r *release) URL() string                       { return r.provider.URL() }
func (r *release) Type() clusterctlv1.ProviderType   { return r.provider.Type() }
func (r *release) ManifestLabel() string             { return r.provider.ManifestLabel() }
func (r *release) SameAs(other config.Provider) bool { return r.provider.SameAs(other) }
func (r *release) Less(other config.Provider) bool   { return r.provider.Less(other) }

// DefaultVersion is the release's own.
func (r *release) DefaultVersion() string { return r.version }

// GetVersions knows this release alone: versions are pinned.
func (r *release) GetVersions(context.Context) ([]string, error) { return []string{r.version}, nil }

// Components reads the components file.
func (r *release) Components() repository.ComponentsClient { return releaseComponents{r} }

// Metadata reads metadata.yaml.
func (r *release) Metadata(version string) repository.MetadataClient {
	return releaseMetadata{r, version}
}

// Templates answers a client that has none: cluster manifests are the user's.
func (r *release) Templates(string) repository.TemplateClient { return noTemplates{} }

// ClusterClasses answers a client that has none.
func (r *release) ClusterClasses(string) repository.ClusterClassClient { return noTemplates{} }

type noTemplates struct{}

func (noTemplates) Get(context.Context, string, string, bool) (repository.Template, error) {
	return nil, errors.New("cluster templates are not read from provider repositories")
}

type releaseComponents struct{ *release }

func (r releaseComponents) Raw(ctx context.Context, options repository.ComponentsOptions) ([]byte, error) {
	return r.file(ctx, options.Version, r.componentsFile())
}

func (r releaseComponents) Get(ctx context.Context, options repository.ComponentsOptions) (repository.Components, error) {
	if options.Version == "" {
		options.Version = r.version
	}
	raw, err := r.Raw(ctx, options)
	if err != nil {
		return nil, err
	}
	return repository.NewComponents(repository.ComponentsInput{
		Provider:     r.provider,
		ConfigClient: r.config,
		Processor:    yamlprocessor.NewSimpleProcessor(),
		RawYaml:      raw,
		Options:      options,
	})
}

type releaseMetadata struct {
	*release
	wanted string
}

func (r releaseMetadata) Get(ctx context.Context) (*clusterctlv1.Metadata, error) {
	content, err := r.file(ctx, r.wanted, metadataFile)
	if err != nil && r.wanted != r.version {
		// A mirror need not hold the release that is installed: each release's
		// metadata says of the earlier series which contracts they had.
		content, err = r.file(ctx, r.version, metadataFile)
	}
	if err != nil {
		return nil, err
	}
	metadata := &clusterctlv1.Metadata{}
	if err := yaml.Unmarshal(content, metadata); err != nil {
		return nil, fmt.Errorf("%s of %s is not valid: %w", metadataFile, r.ManifestLabel(), err)
	}
	if metadata.APIVersion != clusterctlv1.GroupVersion.String() || len(metadata.ReleaseSeries) == 0 {
		return nil, fmt.Errorf("%s of %s is not valid: it is no %s with releaseSeries", metadataFile, r.ManifestLabel(), clusterctlv1.GroupVersion)
	}
	return metadata, nil
}

// file reads a file of a release, once: this one, or, where another version is
// asked for, the sibling folder's (the contract of a provider that is installed).
func (r *release) file(ctx context.Context, version, name string) ([]byte, error) {
	if version == "" {
		version = r.version
	}
	location := *r.location
	location.Path = path.Join(path.Dir(path.Dir(location.Path)), version, name)
	if content, ok := r.read[location.Path]; ok {
		return content, nil
	}
	content, err := read(ctx, &location)
	if err != nil {
		return nil, fmt.Errorf("reading %s of %s %s: %w", name, r.ManifestLabel(), version, err)
	}
	r.read[location.Path] = content
	return content, nil
}

func read(ctx context.Context, location *url.URL) ([]byte, error) {
	if location.Scheme == "file" {
		return readFile(location)
	}
	return download(ctx, releaseAsset(location))
}

func readFile(location *url.URL) ([]byte, error) {
	name := filepath.FromSlash(location.Path)
	if runtime.GOOS == "windows" {
		name = strings.TrimPrefix(name, `\`)
	}
	content, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w (a repository folder is laid out as {label}/{version}/{file})", err)
	}
	return content, err
}

// releaseAsset turns the address that clusterctl's configuration gives to a
// file of a GitHub release, .../releases/{version}/{file}, into the one it is
// downloaded from, .../releases/download/{version}/{file}.
func releaseAsset(location *url.URL) string {
	asset := *location
	parts := strings.Split(strings.TrimPrefix(asset.Path, "/"), "/")
	if asset.Host == "github.com" && len(parts) == 5 && parts[2] == "releases" {
		asset.Path = "/" + path.Join(parts[0], parts[1], "releases/download", parts[3], parts[4])
	}
	return asset.String()
}

// download tries again after what may pass: a broken connection and the
// server's own faults.
func download(ctx context.Context, address string) ([]byte, error) {
	var last error
	for attempt := range downloadAttempts {
		if attempt > 0 {
			select {
			case <-ctx.Done():
				return nil, errors.Join(context.Cause(ctx), last)
			case <-time.After(time.Duration(attempt) * time.Second):
			}
		}
		content, again, err := get(ctx, address)
		if err == nil {
			return content, nil
		}
		last = err
		if !again {
			break
		}
	}
	return nil, last
}

func get(ctx context.Context, address string) (content []byte, again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, false, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, ctx.Err() == nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		again := response.StatusCode >= http.StatusInternalServerError || response.StatusCode == http.StatusTooManyRequests
		return nil, again, fmt.Errorf("%s answered %s", address, response.Status)
	}
	content, err = io.ReadAll(io.LimitReader(response.Body, largestFile+1))
	if err != nil {
		return nil, true, fmt.Errorf("reading %s: %w", address, err)
	}
	if len(content) > largestFile {
		return nil, false, fmt.Errorf("%s is larger than %d MiB: it is no components file", address, largestFile>>20)
	}
	return content, false, nil
}
