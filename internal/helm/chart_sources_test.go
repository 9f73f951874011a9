// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	helmregistry "helm.sh/helm/v3/pkg/registry"
)

// privateRegistry is an OCI registry behind TLS with a certificate of its own,
// and behind tokens that only the user reader gets.
func privateRegistry(t *testing.T, versions ...string) (host, ca string) {
	t.Helper()
	const token = "a-token-for-reader"
	content := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var server *httptest.Server
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token":
			if user, password, _ := r.BasicAuth(); user != "reader" || password != "sesame" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			_ = json.NewEncoder(w).Encode(map[string]string{"token": token})
		case r.Header.Get("Authorization") != "Bearer "+token:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="registry"`, server.URL))
			w.WriteHeader(http.StatusUnauthorized)
		default:
			content.ServeHTTP(w, r)
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	// The same content without tokens, to be filled.
	open := httptest.NewServer(content)
	t.Cleanup(open.Close)
	client, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP())
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range versions {
		if _, err := client.Push(newTestChart(version).archive(t), strings.TrimPrefix(open.URL, "http://")+"/charts/probe:"+version); err != nil {
			t.Fatal(err)
		}
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return strings.TrimPrefix(server.URL, "https://"), string(certificate)
}

func TestAPrivateRegistryBehindTLS(t *testing.T) {
	host, ca := privateRegistry(t, "1.0.0", "1.2.0")
	for name, test := range map[string]struct {
		chart Chart
		wrong string
	}{
		"with the login of its host":        {Chart{Version: "~1", Logins: map[string]Login{host: {Username: "reader", Password: "sesame", CAPEM: ca}}}, ""},
		"with the credentials of the chart": {Chart{Version: "1.2.0", Username: "reader", Password: "sesame", Logins: map[string]Login{host: {CAPEM: ca}}}, ""},
		"with a wrong password":             {Chart{Version: "1.2.0", Logins: map[string]Login{host: {Username: "reader", Password: "hunter2", CAPEM: ca}}}, "401"},
		"without credentials":               {Chart{Version: "1.2.0", Logins: map[string]Login{host: {CAPEM: ca}}}, "401"},
		"with an authority that is none":    {Chart{Logins: map[string]Login{host: {CAPEM: "nonsense"}}}, "no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			test.chart.Ref = "oci://" + host + "/charts/probe"
			loaded, err := test.chart.load(t.Context())
			if test.wrong == "" {
				if err != nil || loaded.Metadata.Version != "1.2.0" {
					t.Errorf("got %v, %v", loaded, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.wrong) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got the error %v, want one with %q and no password", err, test.wrong)
			}
		})
	}
}

func TestAPrivateRepositoryBehindTLS(t *testing.T) {
	archive := newTestChart("1.0.0").archive(t)
	index := "apiVersion: v1\nentries:\n  probe:\n    - {apiVersion: v2, name: probe, version: 1.0.0, urls: [probe-1.0.0.tgz]}\n"
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		switch {
		case user != "reader" || password != "sesame":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/index.yaml":
			_, _ = w.Write([]byte(index))
		case r.URL.Path == "/probe-1.0.0.tgz":
			_, _ = w.Write(archive)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "https://")
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for name, test := range map[string]struct {
		login Login
		wrong string
	}{
		"with the login of its host":     {Login{Username: "reader", Password: "sesame", CAPEM: ca}, ""},
		"with a wrong password":          {Login{Username: "reader", Password: "hunter2", CAPEM: ca}, "401"},
		"without its authority":          {Login{Username: "reader", Password: "sesame"}, "certificate"},
		"with an authority that is none": {Login{CAPEM: "nonsense"}, "no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, err := Chart{Ref: "probe", Repository: server.URL, Logins: map[string]Login{host: test.login}}.load(t.Context())
			if test.wrong == "" {
				if err != nil || loaded.Metadata.Version != "1.0.0" {
					t.Errorf("got %v, %v", loaded, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.wrong) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "sesame") {
				t.Errorf("got the error %v, want one with %q and no password", err, test.wrong)
			}
		})
	}
}

// withDependencies names further charts that the chart needs.
func (c testChart) withDependencies(dependencies string) testChart {
	return c.with("Chart.yaml", "apiVersion: v2\nname: probe\nversion: 1.0.0\ndependencies:\n"+dependencies)
}

// folder writes the chart as a folder.
func (c testChart) folder(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "probe")
	for name, text := range c {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestDependenciesAreFetched(t *testing.T) {
	repository := repositoryServer(t, "1.0.0", "1.2.0", "2.0.0").URL + "/stable"
	oci := "oci://" + registryServer(t, "1.0.0", "1.2.0") + "/charts"
	host := strings.TrimPrefix(strings.TrimSuffix(repository, "/stable"), "http://")
	logins := map[string]Login{host: {Username: "reader", Password: "sesame"}}
	parent := func(dependencies string) testChart {
		c := newTestChart("1.0.0").withDependencies(dependencies)
		c["Chart.yaml"] = strings.Replace(c["Chart.yaml"], "name: probe", "name: parent", 1)
		return c
	}
	beside := filepath.Join(t.TempDir(), "probe.tgz")
	if err := os.WriteFile(beside, newTestChart("1.1.0").archive(t), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		chart testChart
		want  string
		wrong string
	}{
		"twice, in two versions":             {parent(`- {name: probe, version: ~1.0.0, alias: a, repository: "` + repository + "\"}\n" + `- {name: probe, version: "~2", alias: b, repository: "` + repository + `"}`), "1.0.0 2.0.0", ""},
		"twice, in one version":              {parent(`- {name: probe, version: "~1", alias: a, repository: "` + repository + "\"}\n" + `- {name: probe, version: "^1", alias: b, repository: "` + repository + `"}`), "1.2.0", ""},
		"from a repository":                  {parent(`- {name: probe, version: "~1", repository: "` + repository + `"}`), "1.2.0", ""},
		"from a registry":                    {parent(`- {name: probe, version: 1.0.0, repository: "` + oci + `"}`), "1.0.0", ""},
		"from this machine":                  {parent(`- {name: probe, version: ">=1", repository: "file://` + beside + `"}`), "1.1.0", ""},
		"in the version of the lock":         {parent(`- {name: probe, version: "~1", repository: "`+repository+`"}`).with("Chart.lock", "dependencies: [{name: probe, version: 1.0.0, repository: x}]\ngenerated: \"2024-01-01T00:00:00Z\"\ndigest: x\n"), "1.0.0", ""},
		"but for those that are there":       {parent(`- {name: probe, version: "*", repository: "https://nowhere.invalid"}`).with("charts/probe/Chart.yaml", "apiVersion: v2\nname: probe\nversion: 0.9.0\n"), "0.9.0", ""},
		"not from a name in Helm's files":    {parent(`- {name: probe, version: "*", repository: "@stable"}`), "", "no URL"},
		"not from nowhere":                   {parent(`- {name: probe, version: "*"}`), "", "incomplete"},
		"not in a version that is not there": {parent(`- {name: probe, version: 9.9.9, repository: "` + repository + `"}`), "", "9.9.9"},
		"not a chart of another name":        {parent(`- {name: other, version: "*", repository: "file://` + beside + `"}`), "", "turned out to be probe"},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, err := Chart{Ref: test.chart.folder(t), Logins: logins}.load(t.Context())
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("got the error %v, want one with %q", err, test.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, dependency := range loaded.Dependencies() {
				got = append(got, dependency.Metadata.Version)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got probe %v, want %s", got, test.want)
			}
		})
	}
}

func TestAChartsDigestIsThatOfItsFiles(t *testing.T) {
	digest := func(path string) string {
		t.Helper()
		content, err := Chart{Ref: path}.Inspect()
		if err != nil || len(content.Digest) != 64 || content.Version != "1.0.0" {
			t.Fatalf("got %+v, %v", content, err)
		}
		return content.Digest
	}
	chart := newTestChart("1.0.0").with("files/a.txt", "a").with("crds/definition.yaml", newTestChart("").definition()["templates/definition.yaml"])
	first := digest(chart.folder(t))
	if packed := digest(chart.file(t)); packed != first {
		t.Errorf("the archive's digest is %s, the folder's %s", packed, first)
	}
	loaded, err := Chart{Ref: chart.file(t)}.load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if noted := loaded.Metadata.Annotations[digestAnnotation]; noted != first {
		t.Errorf("the loaded chart's digest is %s, want %s", noted, first)
	}
	if noted := loaded.Metadata.Annotations[definitionsAnnotation]; noted != "probes.test.example" {
		t.Errorf("the definitions are %q", noted)
	}
	for name, changed := range map[string]testChart{
		"a template":     chart.with("templates/configmap.yaml", "# nothing"),
		"another file":   chart.with("files/a.txt", "b"),
		"a new file":     chart.with("files/b.txt", ""),
		"the values":     chart.with("values.yaml", "word: other"),
		"the app":        chart.with("Chart.yaml", "apiVersion: v2\nname: probe\nversion: 1.0.0\nappVersion: other\n"),
		"a schema":       chart.with("values.schema.json", "{}"),
		"a dependency's": chart.with("charts/sub/Chart.yaml", "apiVersion: v2\nname: sub\nversion: 1.0.0\n"),
	} {
		if digest(changed.folder(t)) == first {
			t.Errorf("%s changed, and the digest did not", name)
		}
	}
}

func TestTheRulesOfAChartOnThisMachine(t *testing.T) {
	rules := `{"properties": {"word": {"type": "integer"}, "adminPassword": {"pattern": "^x"}}}`
	sub := newTestChart("1.0.0").with("charts/sub/Chart.yaml", "apiVersion: v2\nname: sub\nversion: 1.0.0\n").with("charts/sub/values.schema.json", rules).with("values.yaml", "")
	for name, test := range map[string]struct {
		chart  testChart
		values string
		wrong  string
	}{
		"values that fit":               {newTestChart("1.0.0").with("values.schema.json", rules), "word: 1", ""},
		"values that do not":            {newTestChart("1.0.0").with("values.schema.json", rules), "word: x", "word"},
		"the chart's own, which do not": {newTestChart("1.0.0").with("values.schema.json", rules), "", "word"},
		"a secret that does not":        {newTestChart("1.0.0").with("values.schema.json", rules), "{word: 1, adminPassword: hunter2}", masked},
		"values of a dependency":        {sub, "sub: {word: x}", "sub"},
		"rules that are elsewhere":      {newTestChart("1.0.0").with("values.schema.json", `{"$ref": "http://127.0.0.1:1/rules.json"}`), "word: x", ""},
	} {
		t.Run(name, func(t *testing.T) {
			values, err := MergeValues([]string{test.values})
			if err != nil {
				t.Fatal(err)
			}
			err = Spec{Name: "probe", Chart: Chart{Ref: test.chart.folder(t)}, Values: values}.CheckValues()
			if (err == nil) != (test.wrong == "") || err != nil && (!strings.Contains(err.Error(), test.wrong) || strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("got %v, want an error with %q", err, test.wrong)
			}
		})
	}
}

func TestWhatAChangeOfValuesSays(t *testing.T) {
	for name, test := range map[string]struct {
		before, after string
		texts         bool
		want          string
	}{
		"nothing":                         {"a: 1", "a: 1", true, ""},
		"the form alone":                  {"{a: 1, b: 2}", "b: 2\na: 1.0", true, ""},
		"a number":                        {"a: {b: 1}", "a: {b: 2}", false, "~ a.b: 1 -> 2"},
		"a boolean that is new":           {"", "a: {b: true}", false, `+ a: (masked)`},
		"a leaf that is new":              {"a: {c: 1}", "a: {b: true, c: 1}", false, `+ a.b: true`},
		"a leaf that went":                {"a: {b: true, c: 1}", "a: {c: 1}", false, `- a.b: true`},
		"a text":                          {"word: one", "word: two", false, "~ word: (masked) -> (masked)"},
		"a text that may be shown":        {"word: one", "word: two", true, `~ word: "one" -> "two"`},
		"a text under a name of a secret": {"adminPassword: one", "adminPassword: two", true, "~ adminPassword: (masked) -> (masked)"},
		"a text below a name of a secret": {"auth: {user: one}", "auth: {user: two}", true, "~ auth.user: (masked) -> (masked)"},
		"an element of a list":            {"l: [1, 2]", "l: [1, 3]", false, "~ l[1]: 2 -> 3"},
		"an element with a name":          {"l: [{name: p, v: 1}, {name: q, v: 2}]", "l: [{name: q, v: 3}]", false, "- l[p]: (masked)\n~ l[q].v: 2 -> 3"},
		"a name with dots":                {`l: {"a.b/c": 1}`, `l: {"a.b/c": 2}`, false, "~ l[a.b/c]: 1 -> 2"},
		"another kind of value":           {"a: 1", "a: {b: 1}", false, "~ a: 1 -> (masked)"},
		"a long text, cut":                {"a: x", "a: " + strings.Repeat("y", 200), true, `~ a: "x" -> "` + strings.Repeat("y", 79) + "..."},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := MergeValues([]string{test.before})
			if err != nil {
				t.Fatal(err)
			}
			after, err := MergeValues([]string{test.after})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(DiffValues(before, after, test.texts), "\n"); got != test.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, test.want)
			}
		})
	}
	many := map[string]any{}
	for i := range 500 {
		many[fmt.Sprintf("k%03d", i)] = i
	}
	if lines := DiffValues(nil, many, true); len(lines) != diffLines+1 || lines[diffLines] != "... and 460 more" {
		t.Errorf("500 changes are told in %d lines, the last of which is %q", len(lines), lines[len(lines)-1])
	}
}

func TestSetValues(t *testing.T) {
	for name, test := range map[string]struct {
		set   Set
		want  string
		wrong string
	}{
		"a number":                       {Set{Name: "a.b", Value: "1"}, `{"a":{"b":1,"k":0}}`, ""},
		"a number as a text":             {Set{Name: "a.b", Value: "1", Kind: SetString}, `{"a":{"b":"1","k":0}}`, ""},
		"commas and braces as they are":  {Set{Name: "a.b", Value: `{x,y=z\`, Kind: SetLiteral}, `{"a":{"b":"{x,y=z\\","k":0}}`, ""},
		"a list in braces":               {Set{Name: "a.b", Value: "{1,x}"}, `{"a":{"b":[1,"x"],"k":0}}`, ""},
		"null takes a value out":         {Set{Name: "a.k", Value: "null"}, `{"a":{"k":null}}`, ""},
		"an element":                     {Set{Name: "l[0].n", Value: "x"}, `{"a":{"k":0},"l":[{"n":"x"}]}`, ""},
		"a dot in a name":                {Set{Name: `a.x\.y`, Value: "x"}, `{"a":{"k":0,"x.y":"x"}}`, ""},
		"a list":                         {Set{Name: "l", List: []string{"1", "a,b", "{c}", `d\`}}, `{"a":{"k":0},"l":[1,"a,b","{c}","d\\"]}`, ""},
		"an empty list":                  {Set{Name: "l", List: []string{}}, `{"a":{"k":0},"l":[]}`, ""},
		"a comma that starts a new path": {Set{Name: "l", Value: "hunter2,x"}, "", "the value of l"},
		"a broken index":                 {Set{Name: "l[x", Value: "hunter2"}, "", "the value of l[x"},
		"an index below nothing":         {Set{Name: "l[-1]", Value: "hunter2"}, "", "the value of l[-1]"},
		"no path":                        {Set{Value: "hunter2"}, "", "not the path"},
		"two paths":                      {Set{Name: "a,b", Value: "hunter2"}, "", "not the path"},
	} {
		t.Run(name, func(t *testing.T) {
			values := map[string]any{"a": map[string]any{"k": 0}}
			err := SetValues(values, []Set{test.set})
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("got %v, want an error with %q and no value", err, test.wrong)
				}
				return
			}
			got, marshalErr := json.Marshal(values)
			if err != nil || marshalErr != nil || string(got) != test.want {
				t.Errorf("got %s, %v, want %s", got, err, test.want)
			}
		})
	}
}
