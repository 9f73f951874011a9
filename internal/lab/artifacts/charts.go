// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package artifacts

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/releaseutil"
)

// Names of the charts in a set.
const (
	CiliumChart      = "cilium"
	CertManagerChart = "cert-manager"
	OperatorChart    = "cluster-api-operator"
	TalosCCMChart    = "talos-cloud-controller-manager"
)

// TalosCCMChartVersion is the version of the stand-in for the chart, too.
const TalosCCMChartVersion = "0.5.5"

// chart says how a chart comes about.
type chart struct {
	Name, Version string
	Module, Path  string // the nested module, and the module that holds the chart; none for the lab's own
	Folder        string // of the chart in the module, or in this project
	// Edit does to a copy of the chart what the project does for a release;
	// module is the folder of the module's files.
	Edit func(dir, module string) error
}

func charts() []chart {
	return []chart{
		{
			// The chart in the module is the released one, but for the
			// digests of Cilium's own images, which its release script adds.
			Name: CiliumChart, Version: CiliumVersion,
			Module: "cilium", Path: "github.com/cilium/cilium", Folder: "install/kubernetes/cilium",
		},
		{
			Name: CertManagerChart, Version: CertManagerVersion,
			Module: "cert-manager", Path: "github.com/cert-manager/cert-manager", Folder: "deploy/charts/cert-manager",
			Edit: func(dir, _ string) error { // make/manifests.mk
				if err := os.RemoveAll(filepath.Join(dir, "tests")); err != nil {
					return err
				}
				return setChartVersion(dir, CertManagerVersion)
			},
		},
		{
			Name: OperatorChart, Version: strings.TrimPrefix(OperatorVersion, "v"),
			Module: "operator", Path: "sigs.k8s.io/cluster-api-operator", Folder: "hack/charts/cluster-api-operator",
			Edit: editOperatorChart,
		},
		{Name: TalosCCMChart, Version: TalosCCMChartVersion, Folder: "internal/lab/artifacts/talos-ccm-chart"},
	}
}

// editOperatorChart does what chart-manifest-modification and release-chart of
// the operator's Makefile do.
func editOperatorChart(dir, module string) error {
	values := filepath.Join(dir, "values.yaml")
	if err := substitute(values, regexp.MustCompile(`repository: gcr\.io/k8s-staging-capi-operator/.*`), "repository: "+operatorImage); err != nil {
		return err
	}
	if err := substitute(values, regexp.MustCompile(`tag: dev\b`), "tag: "+OperatorVersion); err != nil {
		return err
	}
	components, err := kustomize(filepath.Join(module, "config", "chart"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "templates", "operator-components.yaml"), components, 0o644); err != nil {
		return err
	}
	return setChartVersion(dir, strings.TrimPrefix(OperatorVersion, "v"))
}

var chartVersionLine = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// setChartVersion does what helm package --version --app-version does.
func setChartVersion(dir, version string) error {
	file := filepath.Join(dir, "Chart.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	content = chartVersionLine.ReplaceAll(content, []byte("$1: "+version))
	return os.WriteFile(file, content, 0o644)
}

func (c chart) file() string { return c.Name + "-" + c.Version + ".tgz" }

// writeCharts packs all charts into dir.
func (b *builder) writeCharts(ctx context.Context, dir, scratch string) error {
	for _, c := range b.charts {
		b.report(ctx, "rendering", "packing chart "+c.Name+" "+c.Version)
		module := b.source
		if c.Module != "" {
			var err error
			if module, err = b.moduleFiles(ctx, c.Module, c.Path); err != nil {
				return err
			}
		}
		draft := filepath.Join(scratch, "charts", c.Name)
		if err := packChart(c, module, draft, filepath.Join(dir, c.file())); err != nil {
			return fmt.Errorf("packing chart %s: %w", c.Name, err)
		}
	}
	return nil
}

func packChart(c chart, module, draft, file string) error {
	if err := copyTree(filepath.Join(module, filepath.FromSlash(c.Folder)), draft); err != nil {
		return err
	}
	if c.Edit != nil {
		if err := c.Edit(draft, module); err != nil {
			return err
		}
	}
	entries, err := chartEntries(c.Name, draft)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if _, err := compressTar(&archive, entries); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, archive.Bytes(), 0o644); err != nil {
		return err
	}
	loaded, err := loader.Load(file)
	if err != nil {
		return fmt.Errorf("reading it back: %w", err)
	}
	if loaded.Metadata.Name != c.Name || loaded.Metadata.Version != c.Version {
		return fmt.Errorf("it says it is %s %s", loaded.Metadata.Name, loaded.Metadata.Version)
	}
	return nil
}

// chartEntries lists the files that helm package takes, in a fixed order with
// Chart.yaml first.
func chartEntries(name, dir string) ([]entry, error) {
	loaded, err := loader.LoadDir(dir) // heeds .helmignore
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, file := range loaded.Raw {
		entries = append(entries, entry{path: "/" + path.Join(name, file.Name), mode: 0o644, content: file.Data})
	}
	definition := "/" + path.Join(name, chartutil.ChartfileName)
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(trueFirst(a.path == definition, b.path == definition), strings.Compare(a.path, b.path))
	})
	return entries, nil
}

// writeCertManager renders cert-manager's static manifest from its chart, as
// its make/manifests.mk does: the namespace, the CRDs, then all else.
func (b *builder) writeCertManager(ctx context.Context, dir, chartFile string) error {
	b.report(ctx, "rendering", "rendering cert-manager "+CertManagerVersion)
	loaded, err := loader.Load(chartFile)
	if err != nil {
		return fmt.Errorf("reading cert-manager's chart: %w", err)
	}
	install := action.NewInstall(&action.Configuration{})
	install.ReleaseName, install.Namespace = CertManagerChart, CertManagerChart
	install.DryRun, install.ClientOnly = true, true
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.29.0", Major: "1", Minor: "29"}
	rendered, err := install.RunWithContext(ctx, loaded, map[string]any{
		"crds":            map[string]any{"enabled": true},
		"creator":         "static",
		"startupapicheck": map[string]any{"enabled": false},
	})
	if err != nil {
		return fmt.Errorf("rendering cert-manager's chart: %w", err)
	}
	folder := filepath.Join(dir, CertManagerLabel, CertManagerVersion)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, certManagerManifest), staticManifest(rendered.Manifest), 0o644)
}

func staticManifest(manifest string) []byte {
	parts := releaseutil.SplitManifests(manifest)
	names := slices.Collect(maps.Keys(parts))
	sort.Sort(releaseutil.BySplitManifestsOrder(names))
	slices.SortStableFunc(names, func(a, b string) int {
		return trueFirst(crdLine.MatchString(parts[a]), crdLine.MatchString(parts[b]))
	})
	text := "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: " + CertManagerChart + "\n"
	for _, name := range names {
		text += "---\n" + strings.TrimSpace(parts[name]) + "\n"
	}
	return []byte(text)
}

var crdLine = regexp.MustCompile(`(?m)^kind: CustomResourceDefinition$`)

// trueFirst orders what holds before what does not.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}
