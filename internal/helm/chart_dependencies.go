// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/registry"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// completeDependencies fetches, into memory, the charts that a chart names as
// its dependencies and does not bring along, as `helm dependency build` does on
// disk. A lock file decides on the version.
func (c Chart) completeDependencies(ctx context.Context, chart *helmchart.Chart) error {
	packed := slices.Clone(chart.Dependencies())
	for _, wanted := range chart.Metadata.Dependencies {
		if slices.ContainsFunc(packed, func(there *helmchart.Chart) bool { return there.Name() == wanted.Name }) {
			continue
		}
		// One chart can be wanted several times, under other names and in other versions.
		if slices.ContainsFunc(chart.Dependencies(), func(there *helmchart.Chart) bool {
			return there.Name() == wanted.Name && fits(there.Metadata.Version, wanted.Version)
		}) {
			continue
		}
		source, err := c.dependency(chart, wanted)
		if err != nil {
			return err
		}
		found, err := source.fetch(ctx)
		if err != nil {
			return fmt.Errorf("fetching its dependency %s: %w", source, err)
		}
		if err := found.Validate(); err != nil {
			return fmt.Errorf("its dependency %s: %w", source, err)
		}
		if found.Name() != wanted.Name || !fits(found.Metadata.Version, source.Version) {
			return fmt.Errorf("its dependency %s turned out to be %s %s", source, found.Name(), found.Metadata.Version)
		}
		if err := source.completeDependencies(ctx, found); err != nil {
			return fmt.Errorf("its dependency %s: %w", source, err)
		}
		chart.AddDependency(found)
	}
	return nil
}

// dependency answers where a dependency comes from.
func (c Chart) dependency(chart *helmchart.Chart, wanted *helmchart.Dependency) (Chart, error) {
	source := Chart{Ref: wanted.Name, Repository: wanted.Repository, Version: wanted.Version, Logins: c.Logins}
	if chart.Lock != nil {
		for _, locked := range chart.Lock.Dependencies {
			if locked.Name == wanted.Name && fits(locked.Version, wanted.Version) {
				source.Version = locked.Version
			}
		}
	}
	path, isPath := strings.CutPrefix(wanted.Repository, "file://")
	switch {
	case isPath && !c.Local():
		return Chart{}, fmt.Errorf("its dependency %s is at %s, which is not in the chart and not on this machine", wanted.Name, wanted.Repository)
	case isPath:
		if !filepath.IsAbs(path) {
			path = filepath.Join(c.Ref, path)
		}
		source.Ref, source.Repository = path, ""
	case registry.IsOCI(wanted.Repository):
		source.Ref, source.Repository = strings.TrimSuffix(wanted.Repository, "/")+"/"+wanted.Name, ""
	case wanted.Repository == "" || strings.HasPrefix(wanted.Repository, "@") || strings.HasPrefix(wanted.Repository, "alias:"):
		// Names of repositories are in Helm's own files, which are not used.
		return Chart{}, fmt.Errorf("the chart is incomplete: its dependency %s is not in its folder charts, and its repository %q is no URL", wanted.Name, wanted.Repository)
	}
	if err := source.Check(); err != nil {
		return Chart{}, fmt.Errorf("its dependency %s: %w", wanted.Name, err)
	}
	// The chart's own credentials go along to its own host.
	if c.Username != "" && c.host() == source.host() {
		source.Username, source.Password = c.Username, c.Password
	}
	return source, nil
}

// host answers scheme and host of where the chart comes from; empty for this
// machine.
func (c Chart) host() string {
	given := c.Repository
	if given == "" {
		given = c.Ref
	}
	scheme, rest, ok := strings.Cut(given, "://")
	if !ok {
		return ""
	}
	host, _, _ := strings.Cut(rest, "/")
	return scheme + "://" + host
}

// definitionsOf names the CustomResourceDefinitions in the folders crds of a
// chart and its dependencies.
func definitionsOf(chart *helmchart.Chart) ([]string, error) {
	var names []string
	for _, file := range chart.CRDObjects() {
		objects, err := kube.ParseDocuments(file.File.Data)
		if err != nil {
			return nil, fmt.Errorf("reading its file %s: %w", file.Filename, err)
		}
		for _, object := range objects {
			if object.GetKind() == definitionKind {
				names = append(names, object.GetName())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
