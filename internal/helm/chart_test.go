// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	helmregistry "helm.sh/helm/v3/pkg/registry"
)

// repositoryServer is a chart repository with the given versions of the chart
// probe, behind a password.
func repositoryServer(t *testing.T, versions ...string) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	index := "apiVersion: v1\nentries:\n  probe:\n"
	for _, version := range versions {
		index += fmt.Sprintf("    - {apiVersion: v2, name: probe, version: %s, urls: [charts/probe-%s.tgz]}\n", version, version)
		archive := newTestChart(version).archive(t)
		mux.HandleFunc("/stable/charts/probe-"+version+".tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(archive) })
	}
	mux.HandleFunc("/stable/index.yaml", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(index)) })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "reader" || password != "sesame" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

// registryServer is an OCI registry with the given versions of charts/probe.
func registryServer(t *testing.T, versions ...string) (host string) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host = strings.TrimPrefix(server.URL, "http://")
	client, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP())
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range versions {
		if _, err := client.Push(newTestChart(version).archive(t), host+"/charts/probe:"+version); err != nil {
			t.Fatal(err)
		}
	}
	return host
}

func TestChartsAreFoundWhereverTheyAre(t *testing.T) {
	repository := repositoryServer(t, "1.0.0", "1.2.0", "2.0.0", "3.0.0-rc.1").URL + "/stable"
	oci := "oci://" + registryServer(t, "1.0.0", "1.2.0", "2.0.0", "3.0.0-rc.1") + "/charts/probe"
	file := newTestChart("1.2.0").file(t)
	login := func(c Chart) Chart { c.Username, c.Password = "reader", "sesame"; return c }
	for name, test := range map[string]struct {
		chart   Chart
		version string
		wrong   string
	}{
		"an exact version of a repository":        {login(Chart{Ref: "probe", Repository: repository, Version: "1.0.0"}), "1.0.0", ""},
		"the newest release of a repository":      {login(Chart{Ref: "probe", Repository: repository + "/"}), "2.0.0", ""},
		"a constraint in a repository":            {login(Chart{Ref: "probe", Repository: repository, Version: "~1"}), "1.2.0", ""},
		"a chart that a repository lacks":         {login(Chart{Ref: "other", Repository: repository}), "", "other"},
		"a version that a repository lacks":       {login(Chart{Ref: "probe", Repository: repository, Version: "9.9.9"}), "", "9.9.9"},
		"a repository without the password":       {Chart{Ref: "probe", Repository: repository}, "", "401"},
		"a repository that is none":               {login(Chart{Ref: "probe", Repository: repository + "/charts"}), "", "404"},
		"an exact version of a registry":          {Chart{Ref: oci, Version: "1.0.0"}, "1.0.0", ""},
		"the newest release of a registry":        {Chart{Ref: oci}, "2.0.0", ""},
		"a constraint in a registry":              {Chart{Ref: oci, Version: "^1.0"}, "1.2.0", ""},
		"a version that a registry lacks":         {Chart{Ref: oci, Version: "9.9.9"}, "", "9.9.9"},
		"a constraint that nothing in it fits":    {Chart{Ref: oci, Version: ">4"}, "", "4 versions"},
		"a registry's chart that is not there":    {Chart{Ref: oci + "s", Version: "1.0.0"}, "", "pulling"},
		"a registry without a path":               {Chart{Ref: "oci://127.0.0.1:1"}, "", "no path"},
		"a URL of an archive":                     {login(Chart{Ref: repository + "/charts/probe-1.2.0.tgz"}), "1.2.0", ""},
		"an archive on disk":                      {Chart{Ref: file}, "1.2.0", ""},
		"an archive on disk with its version":     {Chart{Ref: file, Version: "v1.2.0"}, "1.2.0", ""},
		"an archive on disk of another version":   {Chart{Ref: file, Version: "1.0.0"}, "", "1.2.0, not 1.0.0"},
		"an archive on disk outside a constraint": {Chart{Ref: file, Version: ">=2"}, "", "1.2.0, not"},
		"an archive that is not there":            {Chart{Ref: file + ".missing"}, "", "no chart archive or folder"},
		"a library chart":                         {Chart{Ref: newTestChart("1.0.0").with("Chart.yaml", "apiVersion: v2\nname: probe\nversion: 1.0.0\ntype: library\n").file(t)}, "", "library"},
	} {
		t.Run(name, func(t *testing.T) {
			chart, err := test.chart.load(t.Context())
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) || strings.Contains(err.Error(), "sesame") {
					t.Errorf("got the error %v, want one with %q and no password", err, test.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if chart.Metadata.Version != test.version {
				t.Errorf("got version %s, want %s", chart.Metadata.Version, test.version)
			}
		})
	}
}

func TestCredentialsStayWithTheirHost(t *testing.T) {
	chart := Chart{
		Ref: "probe", Repository: "https://charts.example/stable", Username: "u", Password: "p",
		Logins: map[string]Login{"charts.example": {Username: "other"}, "downloads.example": {Username: "d"}, "127.0.0.1:5000": {Username: "local"}},
	}
	for name, test := range map[string]struct{ scheme, host, user string }{
		"the repository's own credentials come first":     {"https", "charts.example", "u"},
		"another scheme is another place":                 {"http", "charts.example", ""},
		"another port is another place":                   {"https", "charts.example:8443", ""},
		"a host that only begins alike":                   {"https", "charts.example.evil", ""},
		"a host with a login of its own":                  {"https", "downloads.example", "d"},
		"a registry with a login of its own":              {"oci", "downloads.example", "d"},
		"no password leaves this machine in clear text":   {"http", "downloads.example", ""},
		"a host on this machine may be asked without TLS": {"http", "127.0.0.1:5000", "local"},
		"a host that nobody has given credentials for":    {"https", "elsewhere.example", ""},
	} {
		if got := chart.login(test.scheme, test.host).Username; got != test.user {
			t.Errorf("%s: got the user %q, want %q", name, got, test.user)
		}
	}
}

func TestADownloadGivesNoSecretAway(t *testing.T) {
	heard := make(chan string, 10)
	open := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(open.Close)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, open.URL+"/x", http.StatusFound) }))
	t.Cleanup(secure.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	host := strings.TrimPrefix(secure.URL, "https://")
	_, err := Chart{Ref: secure.URL + "/a.tgz", Logins: map[string]Login{host: {Username: "reader", Password: "sesame", CAPEM: ca}}}.load(t.Context())
	if err == nil || !strings.Contains(err.Error(), "from HTTPS to") || len(heard) > 0 {
		t.Errorf("a redirect to HTTP: %v; the server behind it was asked %d times", err, len(heard))
	}
	for _, target := range []string{open.URL, "http://127.0.0.1:1"} {
		_, err := Chart{Ref: target + "/a.tgz?signature=hunter2"}.load(t.Context())
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "/a.tgz?...") {
			t.Errorf("a signed URL: %v", err)
		}
	}
}

func TestADownloadEndsWithItsContext(t *testing.T) {
	reached := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case reached <- struct{}{}:
		case <-r.Context().Done():
		}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	for name, chart := range map[string]Chart{
		"repository": {Ref: "probe", Repository: server.URL},
		"registry":   {Ref: "oci://" + strings.TrimPrefix(server.URL, "http://") + "/charts/probe", Version: "1.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-reached; cancel() }()
			if _, err := chart.load(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestWhatAChartMayBeCalled(t *testing.T) {
	for name, test := range map[string]struct {
		chart Chart
		right bool
	}{
		"a registry's chart":               {Chart{Ref: "oci://quay.io/cilium/charts/cilium"}, true},
		"a repository's chart":             {Chart{Ref: "cilium", Repository: "https://helm.cilium.io"}, true},
		"a path":                           {Chart{Ref: "./charts/cilium"}, true},
		"a URL":                            {Chart{Ref: "https://charts.example/cilium.tgz"}, true},
		"nothing":                          {Chart{}, false},
		"a registry's chart in a repo":     {Chart{Ref: "oci://quay.io/cilium", Repository: "https://helm.cilium.io"}, false},
		"a registry as a repository":       {Chart{Ref: "cilium", Repository: "oci://quay.io/cilium/charts"}, false},
		"a repository without a scheme":    {Chart{Ref: "cilium", Repository: "helm.cilium.io"}, false},
		"a chart of some other scheme":     {Chart{Ref: "ftp://charts.example/cilium.tgz"}, false},
		"a registry's chart by its digest": {Chart{Ref: "oci://quay.io:443/cilium@sha256:" + strings.Repeat("0", 64)}, true},
		"a registry's chart with a tag":    {Chart{Ref: "oci://quay.io:443/cilium/charts/cilium:1.19.6"}, false},
		"a URL with a password":            {Chart{Ref: "https://reader:hunter2@charts.example/cilium.tgz"}, false},
		"a repository with a password":     {Chart{Ref: "cilium", Repository: "https://reader:hunter2@charts.example"}, false},
		"a URL of a chart in a repository": {Chart{Ref: "https://charts.example/cilium.tgz", Repository: "https://helm.cilium.io"}, false},
	} {
		if err := test.chart.Check(); (err == nil) != test.right || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for version, right := range map[string]bool{"1.2.3": true, "v1.2.3": true, "~1.2": true, ">=1 <2": true, "*": true, "latest": false, "1.2.3.4": false} {
		if err := CheckVersion(version); (err == nil) != right {
			t.Errorf("version %s: %v", version, err)
		}
	}
	for releaseName, right := range map[string]bool{"cilium": true, "a.b-c": true, "": false, "Cilium": false, "a_b": false, strings.Repeat("a", 54): false} {
		if err := CheckName(releaseName); (err == nil) != right {
			t.Errorf("name %q: %v", releaseName, err)
		}
	}
}
