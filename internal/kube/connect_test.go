// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

const twoContexts = `
apiVersion: v1
kind: Config
clusters:
- {name: blue, cluster: {server: "https://blue.example:6443"}}
- {name: green, cluster: {server: "https://green.example:6443"}}
users:
- {name: admin, user: {token: very-secret}}
contexts:
- {name: blue, context: {cluster: blue, user: admin}}
- {name: green, context: {cluster: green, user: admin}}
- {name: lost, context: {cluster: nowhere, user: admin}}
current-context: blue
`

type resolverFunc func(ctx context.Context, e Ephemeral) ([]byte, error)

func (f resolverFunc) Kubeconfig(ctx context.Context, e Ephemeral) ([]byte, error) { return f(ctx, e) }

func TestConnectorConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(twoContexts), 0o600); err != nil {
		t.Fatal(err)
	}
	connector := &Connector{
		Resolver: resolverFunc(func(_ context.Context, e Ephemeral) ([]byte, error) {
			if e.Name != "there" {
				return nil, fmt.Errorf("%s: %w", e.Name, ErrAbsent)
			}
			return []byte(twoContexts), nil
		}),
		Clusters: map[string]Access{
			"prod": {KubeconfigPath: path, Context: "green"},
			"loop": {ClusterName: "prod"},
		},
	}
	for name, test := range map[string]struct {
		access Access
		host   string
		fails  string
		absent bool
	}{
		"the current context is taken when none is named":     {access: Access{Kubeconfig: []byte(twoContexts)}, host: "https://blue.example:6443"},
		"a named context is taken":                            {access: Access{Kubeconfig: []byte(twoContexts), Context: "green"}, host: "https://green.example:6443"},
		"a file is read":                                      {access: Access{KubeconfigPath: path}, host: "https://blue.example:6443"},
		"an entry of the map brings its context":              {access: Access{ClusterName: "prod"}, host: "https://green.example:6443"},
		"a context of the access object beats the entry's":    {access: Access{ClusterName: "prod", Context: "blue"}, host: "https://blue.example:6443"},
		"a running ephemeral cluster is found":                {access: Access{Ephemeral: &Ephemeral{Name: "there"}}, host: "https://blue.example:6443"},
		"a retired ephemeral cluster is absent":               {access: Access{Ephemeral: &Ephemeral{Name: "gone"}}, fails: `ephemeral cluster "gone"`, absent: true},
		"a missing file is unknown, not absent":               {access: Access{KubeconfigPath: path + ".no"}, fails: "no such file"},
		"an unknown entry is named":                           {access: Access{ClusterName: "dev"}, fails: `no entry "dev"`},
		"an entry that refers to an entry is refused":         {access: Access{ClusterName: "loop"}, fails: "refers to another entry"},
		"an unknown context is named":                         {access: Access{Kubeconfig: []byte(twoContexts), Context: "red"}, fails: `no context "red"`},
		"a context without its cluster is named":              {access: Access{Kubeconfig: []byte(twoContexts), Context: "lost"}, fails: `cluster "nowhere"`},
		"an empty access object is refused":                   {access: Access{}, fails: "names no cluster"},
		"two sources are refused by name":                     {access: Access{Kubeconfig: []byte(twoContexts), ClusterName: "prod"}, fails: "kubeconfig, cluster_name"},
		"a text that is no kubeconfig is refused, not quoted": {access: Access{Kubeconfig: []byte("very-secret: [")}, fails: "not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := connector.Config(t.Context(), test.access)
			if test.fails == "" {
				if err != nil {
					t.Fatal(err)
				}
				if config.Host != test.host || config.BearerToken != "very-secret" {
					t.Errorf("connects to %s, want %s", config.Host, test.host)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.fails) {
				t.Fatalf("error is %v, want one with %q", err, test.fails)
			}
			if IsAbsent(err) != test.absent {
				t.Errorf("absent is %v, want %v: %v", IsAbsent(err), test.absent, err)
			}
			if strings.Contains(err.Error(), "very-secret") {
				t.Errorf("the error quotes a secret: %v", err)
			}
		})
	}
}

func TestConnectorWithoutResolverSaysSo(t *testing.T) {
	_, err := (&Connector{}).Config(t.Context(), Access{Ephemeral: &Ephemeral{Name: "boot"}})
	if err == nil || IsAbsent(err) || !strings.Contains(err.Error(), "boot") {
		t.Fatalf("error is %v", err)
	}
}

func TestKubeconfigHoldsOnlyTheChosenContextAndInlinesFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), []byte("the authority"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubeconfig")
	text := strings.Replace(twoContexts, `server: "https://green.example:6443"`, `server: "https://green.example:6443", certificate-authority: ca.pem`, 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	content, err := (&Connector{}).Kubeconfig(t.Context(), Access{KubeconfigPath: path, Context: "green"})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(content), "blue.example") || strings.Contains(string(content), "ca.pem") {
		t.Errorf("it holds more than the chosen context:\n%s", content)
	}
	config, err := ConfigFromKubeconfig(content, "")
	if err != nil {
		t.Fatal(err)
	}
	if string(config.CAData) != "the authority" {
		t.Errorf("the CA is %q", config.CAData)
	}
}

func TestKubeconfigForGoesThereAndBack(t *testing.T) {
	want := &rest.Config{Host: "https://127.0.0.9:6443", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("ca"), CertData: []byte("cert"), KeyData: []byte("key"), ServerName: "kmgt"}}
	content, err := KubeconfigFor(want, "kmgt")
	if err != nil {
		t.Fatal(err)
	}
	got, err := ConfigFromKubeconfig(content, "kmgt")
	if err != nil {
		t.Fatal(err)
	}
	if got.Host != want.Host || string(got.CAData) != "ca" || string(got.CertData) != "cert" || string(got.KeyData) != "key" || got.ServerName != "kmgt" {
		t.Errorf("got %v", got)
	}
}

func TestClassifyKeepsWhatIsNoProof(t *testing.T) {
	unknown := errors.New("connection refused")
	if IsAbsent(Classify(unknown)) || Classify(nil) != nil {
		t.Error("a refused connection was taken for absence")
	}
}
