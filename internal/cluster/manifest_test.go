// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"strings"
	"testing"
)

func TestFill(t *testing.T) {
	tests := map[string]struct {
		text    string
		values  map[string]string
		want    string
		wantErr []string
	}{
		"a placeholder becomes its value":                {text: "templateID: ${ID}", values: map[string]string{"ID": "9000"}, want: "templateID: 9000"},
		"one placeholder may stand in several places":    {text: "${A} ${A}", values: map[string]string{"A": "x"}, want: "x x"},
		"a doubled dollar stands for the text itself":    {text: "run: $${HOME}", want: "run: ${HOME}"},
		"a value is not filled again":                    {text: "${A}", values: map[string]string{"A": "${B}"}, want: "${B}"},
		"a shell variable without braces stays":          {text: "$HOME", want: "$HOME"},
		"a comment may speak of placeholders":            {text: "# ${NAME}\na: 1", want: "# ${NAME}\na: 1"},
		"every missing value is named":                   {text: "${B} ${A}", wantErr: []string{"${A} has no value", "${B} has no value"}},
		"a value that nothing asks for is a misspelling": {text: "x", values: map[string]string{"TEMPLATE": "1"}, wantErr: []string{"TEMPLATE is used nowhere"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, _, err := fill(test.text, test.values)
			checkError(t, err, test.wantErr)
			if got != test.want {
				t.Errorf("filled %q, want %q", got, test.want)
			}
		})
	}
}

func checkError(t *testing.T, err error, want []string) {
	t.Helper()
	if len(want) == 0 {
		if err != nil {
			t.Fatalf("error %q, want none", err)
		}
		return
	}
	if err == nil {
		t.Fatalf("no error, want one with %q", want)
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}

const article = `# the article's cluster
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: kmgt, namespace: kmgt}
spec:
  clusterNetwork:
    pods: {cidrBlocks: [10.244.0.0/16]}
    services: {cidrBlocks: [10.96.0.0/12]}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: TalosControlPlane, name: kmgtcp}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: ProxmoxCluster, name: kmgt}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha2
kind: ProxmoxCluster
metadata: {name: kmgt, namespace: kmgt}
spec:
  controlPlaneEndpoint: {host: 127.0.9.150, port: 6443}
  credentialsRef: {name: proxmox-credentials, namespace: kmgt}
---
apiVersion: controlplane.cluster.x-k8s.io/v1alpha3
kind: TalosControlPlane
metadata: {name: kmgtcp, namespace: kmgt}
spec:
  version: v1.36.2
  replicas: 1
  infrastructureTemplate: {apiVersion: infrastructure.cluster.x-k8s.io/v1alpha2, kind: ProxmoxMachineTemplate, name: kmgtcp, namespace: kmgt}
  controlPlaneConfig:
    controlplane:
      strategicPatches:
        - |
          machine: {network: {interfaces: [{deviceSelector: {busPath: "0*"}, vip: {ip: 127.0.9.150}}]}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha2
kind: ProxmoxMachineTemplate
metadata: {name: kmgtcp, namespace: kmgt}
spec: {template: {spec: {sourceNode: pve1, templateID: 9000}}}
`

func TestParse(t *testing.T) {
	tests := map[string]struct {
		text    string
		want    int
		wantErr []string
	}{
		"the article's cluster has four objects":           {text: article, want: 4},
		"an empty text has none":                           {text: "\n# nothing\n---\n---\n", want: 0},
		"a YAML error names document and line of the text": {text: article + "---\na: 1\n b: 2\n", wantErr: []string{"document 5", "line 38"}},
		"a key that stands twice is an error":              {text: "kind: A\nkind: B\n", wantErr: []string{"document 1", "kind"}},
		"an object without apiVersion is refused":          {text: "kind: Cluster\nmetadata: {name: a}\n", wantErr: []string{"apiVersion is missing"}},
		"an object without kind is refused":                {text: "apiVersion: v1\nmetadata: {name: a}\n", wantErr: []string{"document 1", "kind is missing"}},
		"an object without a name is refused":              {text: "apiVersion: v1\nkind: ConfigMap\n", wantErr: []string{"ConfigMap has no metadata.name"}},
		"a list is refused":                                {text: "apiVersion: v1\nkind: List\nitems: []\n", wantErr: []string{"List is not taken"}},
		"a document that is no mapping is refused":         {text: "- a\n- b\n", wantErr: []string{"document 1"}},
		"the same object twice is refused":                 {text: article + "---\n" + strings.Split(article, "---\n")[3], wantErr: []string{"already in document 4"}},
		"all problems are told together":                   {text: "kind: A\n---\nkind: B\n", wantErr: []string{"document 1", "document 2"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(test.text)
			checkError(t, err, test.wantErr)
			if err == nil && len(got.Objects) != test.want {
				t.Errorf("%d objects, want %d", len(got.Objects), test.want)
			}
		})
	}
}

func TestAnErrorInSecretsQuotesNothingOfThem(t *testing.T) {
	for name, text := range map[string]string{
		"broken YAML":          "apiVersion: v1\nkind: Secret\nstringData: {token: hunter2\n",
		"another kind":         "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hunter2}\ndata: {token: hunter2}\n",
		"a key that is double": "hunter2: 1\nhunter2: 2\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseSecrets(text)
			if err == nil {
				t.Fatal("no error")
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error quotes the text: %v", err)
			}
		})
	}
}
