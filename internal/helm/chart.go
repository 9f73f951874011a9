// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/registry"
)

// Annotations that a chart gets in the release's record, which keeps neither the
// archive nor the dependency charts.
const (
	// digestAnnotation holds [digestOf] the chart.
	digestAnnotation = "terraform-provider-capi/digest"
	// definitionsAnnotation names the CustomResourceDefinitions of the folders
	// crds of the chart and its dependencies, separated by commas.
	definitionsAnnotation = "terraform-provider-capi/definitions"
)

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
	// Logins are further credentials, by host as in a URL (with the port, if it
	// has one). Username and Password come first.
	Logins map[string]Login
}

// Login says how to get into the registries and repositories of a host.
type Login struct {
	// Username and Password may be empty, for a host that asks for none.
	Username, Password string
	// CAPEM are the certificate authorities of the host's certificate; empty means
	// the system's.
	CAPEM string
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
	case hasCredentials(c.Ref), hasCredentials(c.Repository):
		return errors.New("a URL with a user name or password in it would show them in plans and errors: credentials have their own arguments")
	case registry.IsOCI(c.Ref) && strings.Contains(c.Ref[strings.LastIndex(c.Ref, "/"):], ":") && !strings.Contains(c.Ref, "@"):
		return fmt.Errorf("the chart %s has a tag: give it as the version", c.Ref)
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

// hasCredentials says whether a URL holds a user's name or password.
func hasCredentials(text string) bool {
	_, rest, ok := strings.Cut(text, "://")
	host, _, _ := strings.Cut(rest, "/")
	return ok && strings.Contains(host, "@")
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

// Local says whether the chart is a file or folder on this machine.
func (c Chart) Local() bool { return c.Repository == "" && !strings.Contains(c.Ref, "://") }

// Content is what a chart on this machine consists of at present.
type Content struct {
	// Version is the chart's version, Digest tells its content from any other.
	Version, Digest string
}

// ErrNoChart says that there is no chart at a path on this machine.
var ErrNoChart = errors.New("no chart archive or folder")

// Inspect reads a chart on this machine, without its dependencies where these
// are elsewhere. The error is [ErrNoChart] where there is none, and else what
// keeps the chart from being installed.
func (c Chart) Inspect() (Content, error) {
	chart, err := c.fromDisk()
	if err == nil {
		err = c.check(chart)
	}
	if err != nil {
		return Content{}, err
	}
	return Content{Version: chart.Metadata.Version, Digest: digestOf(chart)}, nil
}

func (c Chart) load(ctx context.Context) (*helmchart.Chart, error) {
	chart, err := c.fetch(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.check(chart); err != nil {
		return nil, err
	}
	// Before the dependencies are there, so that it is what Inspect sees.
	digest := digestOf(chart)
	if err := c.completeDependencies(ctx, chart); err != nil {
		return nil, err
	}
	definitions, err := definitionsOf(chart)
	if err != nil {
		return nil, err
	}
	annotate(chart, digest, definitions)
	return chart, nil
}

func (c Chart) fetch(ctx context.Context) (*helmchart.Chart, error) {
	switch {
	case c.Repository != "":
		return c.fromRepository(ctx)
	case registry.IsOCI(c.Ref):
		return c.fromRegistry(ctx)
	case !c.Local():
		return c.fromURL(ctx, c.Ref)
	}
	return c.fromDisk()
}

func (c Chart) fromDisk() (*helmchart.Chart, error) {
	chart, err := loader.Load(c.Ref)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w %s on this machine (a chart of a registry starts with oci://, one of a repository needs the repository's URL)", ErrNoChart, c.Ref)
	}
	return chart, err
}

// check refuses a chart that cannot be installed or is not the one asked for.
func (c Chart) check(chart *helmchart.Chart) error {
	if err := chart.Validate(); err != nil {
		return err
	}
	if kind := chart.Metadata.Type; kind != "" && kind != "application" {
		return fmt.Errorf("a chart of type %s cannot be installed", kind)
	}
	if !fits(chart.Metadata.Version, c.Version) {
		return fmt.Errorf("the chart has the version %s, not %s", chart.Metadata.Version, c.Version)
	}
	return nil
}

// remoteRule matches a rule in a schema that would have to be fetched.
var remoteRule = regexp.MustCompile(`"\$ref"\s*:\s*"https?:`)

// CheckValues answers what the rules (values.schema.json) of a chart on this
// machine have against a release's values. It fetches nothing, so that rules
// which are elsewhere are left to the install.
func (s Spec) CheckValues() error {
	chart, err := s.Chart.fromDisk()
	if err != nil {
		return err
	}
	if remoteRules(chart) {
		return nil
	}
	if err = chartutil.ProcessDependenciesWithMerge(chart, s.Values); err == nil {
		_, err = chartutil.ToRenderValues(chart, s.Values, chartutil.ReleaseOptions{Name: s.Name, Namespace: s.Namespace, Revision: 1, IsInstall: true}, nil)
	}
	return s.masker().err(err)
}

func remoteRules(chart *helmchart.Chart) bool {
	return remoteRule.Match(chart.Schema) || slices.ContainsFunc(chart.Dependencies(), remoteRules)
}

// annotate notes in the chart what its release's record would not tell.
func annotate(chart *helmchart.Chart, digest string, definitions []string) {
	if chart.Metadata.Annotations == nil {
		chart.Metadata.Annotations = map[string]string{}
	}
	chart.Metadata.Annotations[digestAnnotation] = digest
	chart.Metadata.Annotations[definitionsAnnotation] = strings.Join(definitions, ",")
}

// digestOf answers a digest of a chart's files and of the charts in it. It is
// the same for a folder and for the archive that was packed from it.
func digestOf(chart *helmchart.Chart) string {
	sum := sha256.New()
	var add func(chart *helmchart.Chart, at string)
	add = func(chart *helmchart.Chart, at string) {
		files := slices.Concat(chart.Templates, chart.Files)
		slices.SortFunc(files, func(a, b *helmchart.File) int { return strings.Compare(a.Name, b.Name) })
		for _, file := range files {
			_, _ = fmt.Fprintf(sum, "%s\x00%d\x00", at+file.Name, len(file.Data))
			_, _ = sum.Write(file.Data)
		}
		metadata, err := json.Marshal(chart.Metadata)
		if err == nil {
			_, _ = sum.Write(metadata)
		}
		_, _ = sum.Write(canonical(chart.Values))
		_, _ = sum.Write(chart.Schema)
		charts := slices.Clone(chart.Dependencies())
		slices.SortFunc(charts, func(a, b *helmchart.Chart) int { return strings.Compare(a.Name(), b.Name()) })
		for _, dependency := range charts {
			add(dependency, at+"charts/"+dependency.Name()+"/")
		}
	}
	add(chart, "")
	return hex.EncodeToString(sum.Sum(nil))
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
