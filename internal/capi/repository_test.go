// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// fakeComponents are components shaped as CAPMOX's are.
const fakeComponents = `apiVersion: v1
kind: Namespace
metadata: {name: capmox-system}
---
apiVersion: v1
kind: Secret
metadata: {name: capmox-manager-credentials, namespace: capmox-system}
stringData:
  url: ${PROXMOX_URL=""}
  token: ${PROXMOX_TOKEN=""}
  secret: ${PROXMOX_SECRET=""}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: capmox-controller-manager, namespace: capmox-system}
spec:
  selector: {matchLabels: {control-plane: controller-manager}}
  template:
    metadata: {labels: {control-plane: controller-manager}}
    spec:
      containers:
      - name: manager
        image: ghcr.io/ionos-cloud/cluster-api-provider-proxmox:v0.9.0
        args: ["--leader-elect", "--v=${CAPMOX_LOGLEVEL:=0}"]
        env:
        - {name: PROXMOX_URL, valueFrom: {secretKeyRef: {key: url, name: capmox-manager-credentials}}}
`

const fakeMetadata = `apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3
kind: Metadata
releaseSeries:
- {major: 0, minor: 9, contract: v1beta2}
`

func writeRelease(t *testing.T, dir, label, version string) {
	t.Helper()
	folder := filepath.Join(dir, label, version)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"infrastructure-components.yaml": fakeComponents, "metadata.yaml": fakeMetadata} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// renderProxmox renders the fake components as Init does.
func renderProxmox(t *testing.T, source Source, p Provider) ([]unstructured.Unstructured, error) {
	t.Helper()
	run := &installation{options: InitOptions{Source: source}}
	components, err := run.components(t.Context(), p)
	if err != nil {
		return nil, err
	}
	return components.Objs(), nil
}

func find(t *testing.T, objects []unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for i := range objects {
		if objects[i].GetKind() == kind && objects[i].GetName() == name {
			return &objects[i]
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

func TestComponentsHoldTheProvidersOwnVariablesOnly(t *testing.T) {
	t.Setenv("PROXMOX_URL", "https://environment.example")
	t.Setenv("CAPMOX_LOGLEVEL", "9")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(os.Getenv("HOME"), ".config"))
	dir := t.TempDir()
	writeRelease(t, dir, "infrastructure-proxmox", "v0.9.0")
	p := Provider{Type: Infrastructure, Name: "proxmox", Version: "v0.9.0", Variables: map[string]string{"CAPMOX_LOGLEVEL": "4"}, Credentials: &ProxmoxCredentials{
		URL: "https://pve.example:8006", Token: "capi@pve!capi-token", Secret: "s3cret", CA: "an authority",
	}}
	objects, err := renderProxmox(t, Source{Repository: "file://" + dir}, p)
	if err != nil {
		t.Fatal(err)
	}
	secret := find(t, objects, "Secret", "capmox-manager-credentials")
	values, _, _ := unstructured.NestedStringMap(secret.Object, "stringData")
	if values["url"] != "https://pve.example:8006" || values["token"] != "capi@pve!capi-token" || values["secret"] != "s3cret" {
		t.Errorf("the credentials are %v", values)
	}
	text := fmt.Sprint(find(t, objects, "Deployment", "capmox-controller-manager").Object)
	for _, want := range []string{"--v=4", "PROXMOX_INSECURE value:false", "SSL_CERT_DIR value:/etc/proxmox-ca", "name:PROXMOX_URL valueFrom", "configMap:map[name:capmox-proxmox-ca]"} {
		if !strings.Contains(text, want) {
			t.Errorf("the Deployment lacks %q:\n%s", want, text)
		}
	}
	if data, _, _ := unstructured.NestedString(find(t, objects, "ConfigMap", "capmox-proxmox-ca").Object, "data", "ca.crt"); data != "an authority" {
		t.Errorf("the authority is %q", data)
	}
	if left, _ := os.ReadDir(os.Getenv("HOME")); len(left) > 0 {
		t.Errorf("something was written to the home directory: %v", left)
	}
}

func TestComponentsSayInsecureOutright(t *testing.T) {
	dir := t.TempDir()
	writeRelease(t, dir, "infrastructure-proxmox", "v0.9.0")
	p := Provider{Type: Infrastructure, Name: "proxmox", Version: "v0.9.0", Credentials: &ProxmoxCredentials{URL: "https://pve.example:8006", Token: "a@pve!b", Secret: "s", Insecure: true}}
	objects, err := renderProxmox(t, Source{Repository: "file://" + dir}, p)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(find(t, objects, "Deployment", "capmox-controller-manager").Object)
	if !strings.Contains(text, "PROXMOX_INSECURE value:true") || strings.Contains(text, "SSL_CERT_DIR") {
		t.Errorf("the Deployment is %s", text)
	}
}

func TestCredentialsChangeTheHash(t *testing.T) {
	p := Provider{Credentials: &ProxmoxCredentials{URL: "u", Token: "t", Secret: "s"}}
	seen := map[string]string{}
	for name, change := range map[string]func(c *ProxmoxCredentials){
		"nothing": func(*ProxmoxCredentials) {}, "URL": func(c *ProxmoxCredentials) { c.URL = "v" }, "token": func(c *ProxmoxCredentials) { c.Token = "u" },
		"secret": func(c *ProxmoxCredentials) { c.Secret = "x" }, "insecure": func(c *ProxmoxCredentials) { c.Insecure = true }, "authority": func(c *ProxmoxCredentials) { c.CA = "ca" },
	} {
		changed := *p.Credentials
		change(&changed)
		hash := Provider{Credentials: &changed}.variablesHash()
		if other, ok := seen[hash]; ok {
			t.Errorf("a changed %s gives the hash of a changed %s", name, other)
		}
		seen[hash] = name
	}
	if first, again := p.variablesHash(), p.variablesHash(); first != again {
		t.Error("the hash is not stable")
	}
}

func TestBrokenComponentsDoNotQuoteASecret(t *testing.T) {
	dir := t.TempDir()
	writeRelease(t, dir, "infrastructure-proxmox", "v0.9.0")
	p := Provider{Type: Infrastructure, Name: "proxmox", Version: "v0.9.0", Credentials: &ProxmoxCredentials{URL: "u", Token: "a@pve!b", Secret: "s3cret: [broken"}}
	_, err := renderProxmox(t, Source{Repository: "file://" + dir}, p)
	if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "rendering the components of infrastructure-proxmox v0.9.0") {
		t.Errorf("error is %v", err)
	}
}

func TestMissingReleaseSaysHowTheFolderIsLaidOut(t *testing.T) {
	p := Provider{Type: Infrastructure, Name: "proxmox", Version: "v0.9.1"}
	_, err := renderProxmox(t, Source{Repository: "file://" + t.TempDir()}, p)
	if err == nil || !strings.Contains(err.Error(), "infrastructure-proxmox v0.9.1") || !strings.Contains(err.Error(), "{label}/{version}/{file}") {
		t.Errorf("error is %v", err)
	}
}

func TestManyReadersAtOnce(t *testing.T) {
	dir := t.TempDir()
	writeRelease(t, dir, "infrastructure-proxmox", "v0.9.0")
	p := Provider{Type: Infrastructure, Name: "proxmox", Version: "v0.9.0"}
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			run := &installation{options: InitOptions{Source: Source{Repository: "file://" + dir}}}
			if _, err := run.components(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

func TestDownloadTriesAgainAfterAPassingFault(t *testing.T) {
	for name, test := range map[string]struct {
		answers []int
		calls   int
		fails   string
	}{
		"a server's fault passes": {answers: []int{503, 200}, calls: 2},
		"a missing file does not": {answers: []int{404, 200}, calls: 1, fails: "404"},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.answers[calls])
				calls++
				_, _ = w.Write([]byte("content"))
			}))
			defer server.Close()
			location, err := url.Parse(server.URL + "/v1.0.0/file.yaml")
			if err != nil {
				t.Fatal(err)
			}
			content, err := read(t.Context(), location)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("error is %v", err)
				}
			} else if err != nil || string(content) != "content" {
				t.Errorf("got %q, %v", content, err)
			}
			if calls != test.calls {
				t.Errorf("it asked %d times, want %d", calls, test.calls)
			}
		})
	}
}
