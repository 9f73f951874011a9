// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testChart is the text of a small chart's files.
type testChart map[string]string

// newTestChart makes a chart "probe" with one ConfigMap that shows the value
// word and whether it was rendered for an install or an upgrade.
func newTestChart(version string) testChart {
	return testChart{
		"Chart.yaml":  "apiVersion: v2\nname: probe\nversion: " + version + "\nappVersion: app-" + version + "\n",
		"values.yaml": "word: default\n",
		"templates/configmap.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-words}\n" +
			"data: {word: {{ .Values.word | quote }}, install: {{ .Release.IsInstall | quote }}}\n",
	}
}

// with answers the chart with one more file, or another text of one.
func (c testChart) with(name, text string) testChart {
	more := maps.Clone(c)
	more[name] = text
	return more
}

// unready adds a Deployment that no control plane without nodes makes ready.
func (c testChart) unready() testChart {
	return c.with("templates/deployment.yaml", strings.TrimLeft(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec: {containers: [{name: main, image: registry.example/none}]}
`, "\n"))
}

// definition adds a CustomResourceDefinition among the templates, as many charts have them.
func (c testChart) definition() testChart {
	return c.with("templates/definition.yaml", strings.TrimLeft(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: probes.test.example}
spec:
  group: test.example
  scope: Namespaced
  names: {plural: probes, singular: probe, kind: Probe, listKind: ProbeList}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, "\n"))
}

// archive packs the chart as a registry or repository serves it.
func (c testChart) archive(t testing.TB) []byte {
	t.Helper()
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if err := archive.WriteHeader(&tar.Header{Name: "probe/" + name, Mode: 0o644, Size: int64(len(c[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(c[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := compressed.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// file writes the chart's archive into the test's folder.
func (c testChart) file(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probe.tgz")
	if err := os.WriteFile(path, c.archive(t), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
