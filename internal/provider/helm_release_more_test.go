// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	frameworkprovider "github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	frameworkresource "github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/plane"
)

func helmHas(attribute, value string) statecheck.StateCheck {
	return statecheck.ExpectKnownValue(helmAddress, tfjsonpath.New(attribute), knownvalue.StringExact(value))
}

func planned(attribute string, value knownvalue.Check) plancheck.PlanCheck {
	return plancheck.ExpectKnownValue(helmAddress, tfjsonpath.New(attribute), value)
}

// testHelmValues gives values in every way and changes them. The write-only one
// is in no state, and somebody else's revision is noticed all the same.
func testHelmValues(t *testing.T, lab *helmLab) {
	chart := lab.chart("1.0.0", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: all}\ndata: {all: {{ toJson .Values | quote }}}\n")
	says := func(want string) resource.TestCheckFunc {
		return func(state *terraform.State) error {
			all := &corev1.ConfigMap{}
			if err := lab.Get(context.Background(), client.ObjectKey{Namespace: lab.namespace, Name: "all"}, all); err != nil || all.Data["all"] != want {
				return fmt.Errorf("the values are %s, %w, want %s", all.Data["all"], err, want)
			}
			if strings.Contains(state.String(), "hunter2") {
				return fmt.Errorf("the secret is in state:\n%s", state)
			}
			return nil
		}
	}
	arguments := func(replicas int, version, secret string) string {
		return lab.release(chart, fmt.Sprintf(`values = ["{replicas: %d, deep: {word: one, list: [1]}}"]`, replicas), `set = [{ name = "deep.word", value = "1.10", type = "string" }]`,
			`set_list = [{ name = "deep.list", value = ["a", "b,c"] }]`, fmt.Sprintf(`set_wo = [{ name = "deep.password", value = %q, type = "literal" }]`, secret),
			fmt.Sprintf("set_wo_version = %q", version))
	}
	values := func(replicas int, secret string) string {
		return fmt.Sprintf(`{"deep":{"list":["a","b,c"],"password":%q,"word":"1.10"},"replicas":%d}`, secret, replicas)
	}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.gone() },
		Steps: []resource.TestStep{
			{Config: arguments(1, "1", "hunter2,{"), ConfigStateChecks: helmState(1, "deployed"), Check: says(values(1, "hunter2,{"))},
			{
				Config: arguments(2, "1", "hunter2,{"),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					planned("changes", knownvalue.StringExact("after revision 1:\n~ replicas: 1 -> 2")),
					planned("chart_version", knownvalue.StringExact("1.0.0")),
				}},
				ConfigStateChecks: helmState(2, "deployed"), Check: says(values(2, "hunter2,{")),
			},
			{
				Config: arguments(2, "2", "hunter22"),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					planned("changes", knownvalue.StringExact("after revision 2:\n~ set_wo: (masked)")),
				}},
				ConfigStateChecks: helmState(3, "deployed"), Check: says(values(2, "hunter22")),
			},
			{ // another revision with the same values in state
				PreConfig: func() { lab.upgradeAsOther(chart, map[string]any{"replicas": 2}) },
				Config:    arguments(2, "2", "hunter22"), ConfigPlanChecks: helmAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: helmState(5, "deployed"), Check: says(values(2, "hunter22")),
			},
		},
	})
}

// upgradeAsOther upgrades the release as the helm command does, which keeps the labels of the record.
func (lab *helmLab) upgradeAsOther(chart string, values map[string]any) {
	lab.t.Helper()
	record, err := lab.record()
	if err != nil {
		lab.t.Fatal(err)
	}
	spec := helm.Spec{Name: "probe", Namespace: lab.namespace, Chart: helm.Chart{Ref: chart}, Values: values, Owner: record.Owner}
	if _, err := (helm.Engine{}).Ensure(context.Background(), lab.Client, spec); err != nil {
		lab.t.Fatal(err)
	}
}

// testHelmPlanSize changes one line of two thousand, with a secret among them.
func testHelmPlanSize(t *testing.T, lab *helmLab) {
	var values strings.Builder
	for i := range 2000 {
		_, _ = fmt.Fprintf(&values, "key%04d: {number: %d, text: some text}\n", i, i)
	}
	values.WriteString("adminPassword: hunter2\n")
	chart := lab.chart("1.0.0")
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return lab.release(chart, fmt.Sprintf("values = [file(%q)]", file), "show_values = true")
	}
	w := newWorkspace(t, write(values.String()))
	w.must("apply", "-auto-approve", "-input=false")
	changed := strings.NewReplacer("number: 1234,", "number: 4321,", "hunter2", "hunter22").Replace(values.String())
	w.configure(write(changed))
	out := w.must("plan", "-input=false", "-no-color")
	if lines := strings.Count(out, "\n"); lines > 40 {
		t.Errorf("the plan of one changed line has %d lines:\n%.3000s", lines, out)
	}
	for _, want := range []string{"~ key1234.number: 1234 -> 4321", "~ adminPassword: (masked) -> (masked)"} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan lacks %q:\n%.3000s", want, out)
		}
	}
	if strings.Contains(out, "hunter2") || strings.Contains(out, "key0001") {
		t.Errorf("the plan shows a secret, or what does not change:\n%.3000s", out)
	}
	w.must("apply", "-auto-approve", "-input=false")
	if out, err := w.run("plan", "-detailed-exitcode", "-input=false"); err != nil {
		t.Errorf("after it the plan is not empty: %v\n%s", err, out)
	}
	w.must("destroy", "-auto-approve", "-input=false")
}

// testHelmDrift edits an object by hand.
func testHelmDrift(t *testing.T, lab *helmLab) {
	chart := lab.chart("1.0.0", "apiVersion: v1\nkind: Secret\nmetadata: {name: probe-secret}\nstringData: {word: hunter2}\n")
	edit := func() {
		words, secret := &corev1.ConfigMap{}, &corev1.Secret{}
		words.Namespace, words.Name, secret.Namespace, secret.Name = lab.namespace, "probe-words", lab.namespace, "probe-secret"
		for object, patch := range map[client.Object]string{words: `{"data":{"word":"theirs"}}`, secret: `{"data":{"word":"aHVudGVyMw=="}}`} {
			if err := lab.Client.Client.Patch(context.Background(), object, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
				t.Fatal(err)
			}
		}
	}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.gone() },
		Steps: []resource.TestStep{
			{Config: lab.release(chart, `show_values = true`)},
			{
				PreConfig: edit,
				Config:    lab.release(chart, `show_values = true`),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					plancheck.ExpectResourceAction(helmAddress, plancheck.ResourceActionUpdate),
					driftSays(fmt.Sprintf("Secret %[1]s/probe-secret ~ data.word: (masked) -> (masked)\nConfigMap %[1]s/probe-words ~ data.word: \"theirs\" -> \"none\"", lab.namespace)),
				}},
				ConfigStateChecks: append(helmState(2, "deployed"), statecheck.ExpectKnownValue(helmAddress, tfjsonpath.New("drift"), knownvalue.Null())),
				Check:             lab.says("none"),
			},
			{ // nobody looks where nobody is to look
				PreConfig:         func() { edit() },
				Config:            lab.release(chart, `show_values = true`, `detect_drift = false`),
				ConfigStateChecks: helmState(2, "deployed"), Check: lab.says("theirs"),
			},
			{Config: lab.release(chart, `show_values = true`, `detect_drift = false`), PlanOnly: true},
		},
	})
}

// driftSays checks what a plan shows of the drift: what it was before.
type driftSays string

func (want driftSays) CheckPlan(_ context.Context, req plancheck.CheckPlanRequest, resp *plancheck.CheckPlanResponse) {
	for _, change := range req.Plan.ResourceChanges {
		if before, ok := change.Change.Before.(map[string]any); ok && change.Address == helmAddress {
			if got := before["drift"]; got != string(want) {
				resp.Error = fmt.Errorf("the drift is\n%v\nwant\n%s", got, want)
			}
			return
		}
	}
	resp.Error = fmt.Errorf("the plan has no change of %s", helmAddress)
}

// testHelmChartOnDisk changes a chart's files under the same version.
func testHelmChartOnDisk(t *testing.T, lab *helmLab) {
	chart := lab.chart("1.0.0")
	template := filepath.Join(chart, "templates", "configmap.yaml")
	text, err := os.ReadFile(template)
	if err != nil {
		t.Fatal(err)
	}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.gone() },
		Steps: []resource.TestStep{
			{Config: lab.release(chart), ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{planned("chart_version", knownvalue.StringExact("1.0.0"))}}},
			{
				PreConfig: func() {
					if err := os.WriteFile(template, []byte(strings.Replace(string(text), `"none"`, `"changed"`, 1)), 0o600); err != nil {
						t.Fatal(err)
					}
				},
				Config: lab.release(chart), ConfigPlanChecks: helmAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: helmState(2, "deployed"), Check: lab.says("changed"),
			},
			{ // a folder that has gone changes nothing as long as nothing else does
				PreConfig: func() {
					if err := os.RemoveAll(chart); err != nil {
						t.Fatal(err)
					}
				},
				Config: lab.release(chart), PlanOnly: true,
			},
		},
	})
}

// chartRepository serves the charts of folders to the user reader, and counts
// who was refused.
type chartRepository struct {
	*httptest.Server
	mu       sync.Mutex
	index    string
	archives map[string][]byte
}

func newChartRepository(t *testing.T, password string) *chartRepository {
	t.Helper()
	r := &chartRepository{index: "apiVersion: v1\nentries:\n  probe:\n", archives: map[string][]byte{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		archive, found := r.archives[req.URL.Path]
		user, given, _ := req.BasicAuth()
		switch {
		case user != "reader" || given != password:
			w.WriteHeader(http.StatusUnauthorized)
		case req.URL.Path == "/index.yaml":
			_, _ = w.Write([]byte(r.index))
		case found:
			_, _ = w.Write(archive)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// add packs the chart in a folder.
func (r *chartRepository) add(t *testing.T, version, folder string) {
	t.Helper()
	chart, err := loader.LoadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := chartutil.Save(chart, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(packed)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.archives["/"+version+".tgz"] = archive
	r.index += fmt.Sprintf("    - {apiVersion: v2, name: probe, version: %s, urls: [%s.tgz]}\n", version, version)
}

// testHelmRange pins what a range came to, with credentials of the provider
// block, which are wrong at first.
func testHelmRange(t *testing.T, lab *helmLab) {
	repository := newChartRepository(t, "sesame")
	repository.add(t, "1.0.0", lab.chart("1.0.0"))
	repository.add(t, "1.1.0", lab.chart("1.1.0"))
	configuration := func(password, version, word string) string {
		return fmt.Sprintf("provider \"capi\" {\n  registries = { %q = { username = \"reader\", password = %q } }\n}\n", strings.TrimPrefix(repository.URL, "http://"), password) +
			lab.release("probe", fmt.Sprintf("repository = %q", repository.URL), fmt.Sprintf("version = %q", version), fmt.Sprintf("values = [%q]", "word: "+word))
	}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.gone() },
		Steps: []resource.TestStep{
			{Config: configuration("hunter2", "~1", "one"), ExpectError: regexp.MustCompile(`(?s)Unable to install the Helm release.*401.*No\s+release\s+was\s+made`)},
			{Config: configuration("sesame", "~1", "one"), ConfigStateChecks: append(helmState(1, "deployed"), helmHas("chart_version", "1.1.0"))},
			{
				PreConfig: func() { repository.add(t, "1.2.0", lab.chart("1.2.0")) },
				Config:    configuration("sesame", "~1", "two"),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
					planned("chart_version", knownvalue.StringExact("1.1.0")),
				}},
				ConfigStateChecks: append(helmState(2, "deployed"), helmHas("chart_version", "1.1.0")), Check: lab.says("two"),
			},
			{Config: configuration("sesame", "^1.0", "two"), ConfigStateChecks: append(helmState(3, "deployed"), helmHas("chart_version", "1.2.0"))},
		},
	})
}

// testHelmTaint replaces a ready release: its definitions and custom resources
// stay. The destroy then removes the definitions that nothing uses.
func testHelmTaint(t *testing.T, lab *helmLab) {
	chart := lab.chart("1.0.0", taintedDefinition("templated"))
	crds := filepath.Join(chart, "crds")
	if err := os.MkdirAll(crds, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(crds, "definition.yaml"), []byte(taintedDefinition("folder")), 0o600); err != nil {
		t.Fatal(err)
	}
	precious := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "taint.example/v1", "kind": "Templated", "metadata": map[string]any{"namespace": lab.namespace, "name": "precious"},
	}}
	var uid types.UID
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy: func(*terraform.State) error {
			for name, want := range map[string]bool{"templated": true, "folder": false} {
				object, err := lab.Object(context.Background(), "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name+"s.taint.example")
				if there := err == nil && object.GetDeletionTimestamp() == nil; there != want {
					return fmt.Errorf("the definition %s is there: %v, %w", name, there, err)
				}
			}
			return lab.gone()
		},
		Steps: []resource.TestStep{
			{Config: lab.release(chart, `delete_crds = true`), ConfigStateChecks: helmState(1, "deployed")},
			{
				PreConfig: func() {
					if err := lab.Create(context.Background(), precious); err != nil {
						t.Fatal(err)
					}
					uid = precious.GetUID()
				},
				Taint: []string{helmAddress}, Config: lab.release(chart, `delete_crds = true`),
				ConfigPlanChecks: helmAction(plancheck.ResourceActionReplace), ConfigStateChecks: helmState(1, "deployed"),
				Check: func(*terraform.State) error {
					found, err := lab.Object(context.Background(), "taint.example/v1", "Templated", lab.namespace, "precious")
					if err != nil || found.GetUID() != uid {
						return fmt.Errorf("after a taint the custom resource is %v, %w", found, err)
					}
					return nil
				},
			},
		},
	})
}

// taintedDefinition is a definition of a kind named after its lower-case name.
func taintedDefinition(name string) string {
	kind := strings.ToUpper(name[:1]) + name[1:]
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.taint.example}
spec:
  group: taint.example
  scope: Namespaced
  names: {plural: %[1]ss, singular: %[1]s, kind: %[2]s, listKind: %[2]sList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`, name, kind)
}

// testHelmInterrupted is Ctrl-C while the release waits: state has it, its record
// is not left pending, and the next apply goes on.
func testHelmInterrupted(t *testing.T, lab *helmLab) {
	w := newWorkspace(t, lab.release(lab.chart("1.0.0", unready)))
	out, err := w.interrupted(func(ctx context.Context) error {
		return kube.Wait(ctx, "the release to wait for its objects", func(ctx context.Context) (bool, string, error) {
			_, err := lab.Object(ctx, "apps/v1", "Deployment", lab.namespace, "probe")
			return err == nil, "", err
		})
	}, "apply", "-auto-approve", "-input=false", "-no-color")
	if err == nil || !strings.Contains(out, "Unable to install the Helm release") {
		t.Fatalf("the interrupted apply: %v\n%s", err, out)
	}
	record, err := lab.record()
	if err != nil || record.Status != "failed" {
		t.Errorf("the record is %+v, %v", record, err)
	}
	if state := w.must("state", "list"); !strings.Contains(state, helmAddress) {
		t.Errorf("state has\n%s", state)
	}
	w.must("untaint", helmAddress)
	w.configure(lab.release(lab.chart("1.0.0"), `values = ["word: better"]`))
	w.must("apply", "-auto-approve", "-input=false")
	if word, err := lab.word(); err != nil || word != "better" {
		t.Errorf("the release says %q, %v", word, err)
	}
	w.must("destroy", "-auto-approve", "-input=false")
}

// interrupted runs the CLI and sends it Ctrl-C once when has answered.
func (w *workspace) interrupted(when func(context.Context) error, arguments ...string) (string, error) {
	w.t.Helper()
	command := exec.CommandContext(w.t.Context(), w.cli, arguments...)
	command.Dir, command.Env = w.dir, w.environment()
	var out strings.Builder
	command.Stdout, command.Stderr = &out, &out
	if err := command.Start(); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	waited := make(chan error, 1)
	go func() { waited <- when(ctx) }()
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case err := <-waited:
		if err == nil {
			err = command.Process.Signal(os.Interrupt)
		}
		if err != nil {
			w.t.Error(err)
		}
		err = <-ended
		cancel()
		return out.String(), err
	case err := <-ended:
		cancel()
		w.t.Log("the command ended first: ", <-waited)
		return out.String(), err
	}
}

// testHelmOtherCluster moves the resource to a second cluster: it is installed
// there, and the release on the first one stays.
func testHelmOtherCluster(t *testing.T, lab *helmLab) {
	second := newHelmLab(t, plane.Start(t))
	second.namespace = lab.namespace
	chart := lab.chart("1.0.0")
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy: func(*terraform.State) error {
			if record, err := lab.record(); err != nil || !record.Deployed() {
				return fmt.Errorf("the release on the first cluster is %+v, %w", record, err)
			}
			return second.gone()
		},
		Steps: []resource.TestStep{
			{Config: lab.release(chart, `values = ["word: one"]`), ConfigStateChecks: helmState(1, "deployed")},
			{
				Config: second.release(chart, `values = ["word: one"]`), ConfigPlanChecks: helmAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: helmState(1, "deployed"), Check: second.says("one"),
			},
		},
	})
}

// testHelmImported takes a release of the helm command over without a new
// revision, by id and from the state of the provider hashicorp/helm.
func testHelmImported(t *testing.T, lab *helmLab) {
	chart := lab.chart("1.0.0")
	spec := helm.Spec{Name: "probe", Namespace: lab.namespace, CreateNamespace: true, Chart: helm.Chart{Ref: chart}, Values: map[string]any{"word": "theirs"}, Owner: newUUID()}
	if _, err := (helm.Engine{}).Ensure(t.Context(), lab.Client, spec); err != nil {
		t.Fatal(err)
	}
	release := lab.release(chart, `values = ["word: theirs"]`)
	block := fmt.Sprintf("import {\n  to = %s\n  id = %q\n}\n", helmAddress, lab.kubeconfig+"#"+lab.namespace+"/probe")
	former := fmt.Sprintf("resource \"helm_release\" \"probe\" {\n  name = \"probe\"\n  namespace = %q\n}\n", lab.namespace)
	moved := fmt.Sprintf("moved {\n  from = helm_release.probe\n  to = %s\n}\n", helmAddress)
	forget := "removed {\n  from = " + helmAddress + "\n  lifecycle {\n    destroy = false\n  }\n}\n"
	factories := testProviders()
	factories["helm"] = providerserver.NewProtocol6WithError(formerProvider{})
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: factories,
		CheckDestroy:             func(*terraform.State) error { return lab.gone() },
		Steps: []resource.TestStep{
			{Config: block + release, ConfigStateChecks: helmState(1, "deployed"), Check: lab.says("theirs")},
			{Config: forget + former},
			{
				Config: moved + release, ConfigPlanChecks: helmAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: helmState(1, "deployed"), Check: lab.says("theirs"),
			},
		},
	})
}

// formerProvider stands for hashicorp/helm: a helm_release that does nothing but
// be in state.
type formerProvider struct{}

func (formerProvider) Metadata(_ context.Context, _ frameworkprovider.MetadataRequest, resp *frameworkprovider.MetadataResponse) {
	resp.TypeName = "helm"
}
func (formerProvider) Schema(context.Context, frameworkprovider.SchemaRequest, *frameworkprovider.SchemaResponse) {
}
func (formerProvider) Configure(context.Context, frameworkprovider.ConfigureRequest, *frameworkprovider.ConfigureResponse) {
}
func (formerProvider) DataSources(context.Context) []func() datasource.DataSource { return nil }
func (formerProvider) Resources(context.Context) []func() frameworkresource.Resource {
	return []func() frameworkresource.Resource{func() frameworkresource.Resource { return formerRelease{} }}
}

type formerRelease struct{}

func (formerRelease) Metadata(_ context.Context, _ frameworkresource.MetadataRequest, resp *frameworkresource.MetadataResponse) {
	resp.TypeName = "helm_release"
}
func (formerRelease) Schema(_ context.Context, _ frameworkresource.SchemaRequest, resp *frameworkresource.SchemaResponse) {
	resp.Schema = schema.Schema{Attributes: map[string]schema.Attribute{"name": schema.StringAttribute{Required: true}, "namespace": schema.StringAttribute{Required: true}}}
}
func (formerRelease) Create(_ context.Context, req frameworkresource.CreateRequest, resp *frameworkresource.CreateResponse) {
	resp.State.Raw = req.Plan.Raw
}
func (formerRelease) Read(context.Context, frameworkresource.ReadRequest, *frameworkresource.ReadResponse) {
}
func (formerRelease) Update(_ context.Context, req frameworkresource.UpdateRequest, resp *frameworkresource.UpdateResponse) {
	resp.State.Raw = req.Plan.Raw
}
func (formerRelease) Delete(context.Context, frameworkresource.DeleteRequest, *frameworkresource.DeleteResponse) {
}
