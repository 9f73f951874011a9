// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
)

const helmAddress = "capi_helm_release.probe"

func helmAction(kind plancheck.ResourceActionType) resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(helmAddress, kind)}}
}

func helmState(revision int64, status string) []statecheck.StateCheck {
	return []statecheck.StateCheck{
		statecheck.ExpectKnownValue(helmAddress, tfjsonpath.New("revision"), knownvalue.Int64Exact(revision)),
		statecheck.ExpectKnownValue(helmAddress, tfjsonpath.New("status"), knownvalue.StringExact(status)),
		statecheck.ExpectKnownValue(helmAddress, tfjsonpath.New("phase"), knownvalue.StringExact(phaseReady)),
	}
}

// says checks the value that the chart was installed with.
func (lab *helmLab) says(want string) resource.TestCheckFunc {
	return func(*terraform.State) error {
		if word, err := lab.word(); err != nil || word != want {
			return fmt.Errorf("the release says %q, %w; want %q", word, err, want)
		}
		return nil
	}
}

// TestHelmRelease runs all cases on one control plane, each in a namespace.
func TestHelmRelease(t *testing.T) {
	running := startPlane(t)
	for name, test := range map[string]func(*testing.T, *helmLab){
		"through its life":                                     testHelmLife,
		"on a cluster that the plan does not know":             testHelmUnknownCluster,
		"a failed install is repaired by the next apply":       testHelmFailedInstall,
		"a failed upgrade is repaired without a replacement":   testHelmFailedUpgrade,
		"an API server that is away keeps the state":           testHelmAway,
		"a cluster that holds Clusters keeps its releases":     testHelmKept,
		"a release of somebody else is left alone":             testHelmForeign,
		"a killed provider is followed by an apply that mends": testHelmKilled,
		"values of every kind":                                 testHelmValues,
		"a plan shows what changes in the values, and no more": testHelmPlanSize,
		"edited objects are shown and brought back":            testHelmDrift,
		"a chart on disk is installed again when it changes":   testHelmChartOnDisk,
		"a range of versions stays where it came to":           testHelmRange,
		"a taint keeps definitions and custom resources":       testHelmTaint,
		"Ctrl-C leaves what the next apply takes up":           testHelmInterrupted,
		"another cluster gets the release as well":             testHelmOtherCluster,
		"import and move":                                      testHelmImported,
		"two states want one release":                          testHelmTwoStates,
		"a killed install under another name":                  testHelmRenamed,
		"a kubeconfig that is revoked in the middle":           testHelmRevoked,
		"values that fit into no record":                       testHelmHugeValues,
	} {
		t.Run(name, func(t *testing.T) { test(t, newHelmLab(t, running)) })
	}
}

func testHelmLife(t *testing.T, lab *helmLab) {
	first, second := lab.chart("1.0.0"), lab.chart("1.1.0")
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.gone() },
		Steps: []resource.TestStep{
			{ // installed
				Config:            lab.release(first, `values = ["word: zero", "word: one"]`),
				ConfigStateChecks: append(helmState(1, "deployed"), statecheck.ExpectKnownValue(helmAddress, tfjsonpath.New("app_version"), knownvalue.StringExact("app-1.0.0"))),
				Check:             lab.says("one"),
			},
			{ // what changes nothing on the cluster makes no revision
				Config:            lab.release(first, `values = ["word: zero", "word: one"]`, `wait = false`, `timeouts = { create = "5m" }`),
				ConfigPlanChecks:  helmAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: helmState(1, "deployed"),
			},
			{ // upgraded
				Config:           lab.release(second, `values = ["word: two"]`, `version = "~1.1"`),
				ConfigPlanChecks: helmAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: append(helmState(2, "deployed"),
					statecheck.ExpectKnownValue(helmAddress, tfjsonpath.New("chart_version"), knownvalue.StringExact("1.1.0"))),
				Check: lab.says("two"),
			},
			{ // changed by others and brought back
				PreConfig:         func() { lab.upgradeAsOther(second, map[string]any{"word": "theirs"}) },
				Config:            lab.release(second, `values = ["word: two"]`, `version = "~1.1"`),
				ConfigPlanChecks:  helmAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: helmState(4, "deployed"),
				Check:             lab.says("two"),
			},
			{ // removed by others and made again
				PreConfig: func() {
					record, err := lab.record()
					if err == nil {
						err = helm.Remove(context.Background(), lab.Client, lab.namespace, "probe", record.Owner, nil)
					}
					if err != nil {
						t.Fatal(err)
					}
				},
				Config:            lab.release(second, `values = ["word: two"]`, `version = "~1.1"`),
				ConfigPlanChecks:  helmAction(plancheck.ResourceActionCreate),
				ConfigStateChecks: helmState(1, "deployed"),
				Check:             lab.says("two"),
			},
			{ // imported
				ResourceName: helmAddress, ImportState: true, ImportStateId: lab.kubeconfig + "#" + lab.namespace + "/probe", ImportStateVerify: true,
				ImportStateVerifyIgnore: []string{"chart", "version", "values", "phase", "wait", "wait_for_jobs", "create_namespace", "on_destroy",
					"atomic", "delete_crds", "detect_drift", "recover", "show_values", "skip_crds"},
			},
		},
	})
}

func testHelmUnknownCluster(t *testing.T, lab *helmLab) {
	unknown := func(arguments ...string) string {
		return fmt.Sprintf("resource \"terraform_data\" \"path\" {\n  input = %q\n}\n", lab.kubeconfig) +
			strings.Replace(lab.release(lab.chart("1.0.0"), arguments...), fmt.Sprintf("%q", lab.kubeconfig), "terraform_data.path.output", 1)
	}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.gone() },
		Steps: []resource.TestStep{
			{
				Config:           unknown(),
				ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectUnknownValue(helmAddress, tfjsonpath.New("cluster").AtMapKey("kubeconfig_path"))}},
				Check:            lab.says("none"),
			},
		},
	})
}

func testHelmFailedInstall(t *testing.T, lab *helmLab) {
	var instance string
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.gone() },
		Steps: []resource.TestStep{
			{
				Config:      lab.release(lab.chart("1.0.0", unready), `timeouts = { create = "4s" }`),
				ExpectError: regexp.MustCompile(`(?s)Unable to install the Helm release.*deployments/probe.*0 out of 1.*Revision 1.*failed.*terraform untaint`),
			},
			{
				PreConfig: func() {
					record, err := lab.record()
					if err != nil || record.Status != "failed" {
						t.Fatalf("the failed release is %+v, %v", record, err)
					}
					instance = record.Owner
				},
				Config:            lab.release(lab.chart("1.0.0"), `values = ["word: better"]`),
				ConfigPlanChecks:  helmAction(plancheck.ResourceActionReplace),
				ConfigStateChecks: helmState(2, "deployed"),
				Check: resource.ComposeTestCheckFunc(lab.says("better"), func(*terraform.State) error {
					if record, err := lab.record(); err != nil || record.Owner == instance {
						return fmt.Errorf("the release is still marked by the first run: %+v, %w", record, err)
					}
					return nil
				}),
			},
		},
	})
}

func testHelmFailedUpgrade(t *testing.T, lab *helmLab) {
	good, bad := lab.chart("1.0.0"), lab.chart("2.0.0", unready)
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.gone() },
		Steps: []resource.TestStep{
			{Config: lab.release(good)},
			{
				Config:      lab.release(bad, `timeouts = { update = "4s" }`),
				ExpectError: regexp.MustCompile(`(?s)Unable to upgrade the Helm release.*deployments/probe.*Revision 2.*failed`),
			},
			{
				Config:            lab.release(good, `values = ["word: better"]`),
				ConfigPlanChecks:  helmAction(plancheck.ResourceActionUpdate),
				ConfigStateChecks: helmState(3, "deployed"),
				Check:             lab.says("better"),
			},
		},
	})
}

func testHelmAway(t *testing.T, lab *helmLab) {
	chart := lab.chart("1.0.0")
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		Steps: []resource.TestStep{
			{Config: lab.release(chart)},
			{
				PreConfig: func() { lab.SetDown(true) },
				Config:    lab.release(chart), PlanOnly: true,
			},
			{
				Config:      lab.release(chart),
				Destroy:     true,
				ExpectError: regexp.MustCompile(`(?s)Unable to uninstall the Helm release.*on_destroy = "forget"`),
			},
			{ // the way out works without an answer
				Config:           lab.release(chart, `on_destroy = "forget"`),
				ConfigPlanChecks: helmAction(plancheck.ResourceActionUpdate),
			},
		},
		CheckDestroy: func(*terraform.State) error {
			if _, err := lab.record(); err != nil {
				return fmt.Errorf("a forgotten release: %w", err)
			}
			return nil
		},
	})
}

func testHelmKept(t *testing.T, lab *helmLab) {
	chart := lab.chart("1.0.0")
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		Steps: []resource.TestStep{
			{Config: lab.release(chart)},
			{
				PreConfig: func() { t.Cleanup(lab.holdCluster()) },
				Config:    lab.release(chart), Destroy: true,
			},
			{ // the release stayed, and the same configuration takes it over
				PreConfig: func() {
					if _, err := lab.record(); err != nil {
						t.Fatalf("the release of a cluster with Clusters: %v", err)
					}
				},
				Config:            lab.release(chart, `on_destroy = "remove"`),
				ConfigStateChecks: helmState(1, "deployed"),
			},
		},
		CheckDestroy: func(*terraform.State) error { return lab.gone() },
	})
}

func testHelmForeign(t *testing.T, lab *helmLab) {
	chart := lab.chart("1.0.0")
	spec := helm.Spec{Name: "probe", Namespace: lab.namespace, CreateNamespace: true, Chart: helm.Chart{Ref: chart}, Values: map[string]any{"word": "theirs"}, Owner: newUUID()}
	if _, err := (helm.Engine{}).Ensure(t.Context(), lab.Client, spec); err != nil {
		t.Fatal(err)
	}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		Steps: []resource.TestStep{
			{
				Config:      lab.release(chart),
				ExpectError: regexp.MustCompile(`(?s)Unable to install the Helm release.*belongs\s+to\s+somebody\s+else.*No\s+release\s+was\s+made.*terraform import`),
			},
		},
		CheckDestroy: func(*terraform.State) error {
			if record, err := lab.record(); err != nil || record.Owner != spec.Owner || record.Revision != 1 {
				return fmt.Errorf("afterwards it is %+v, %w", record, err)
			}
			return nil
		},
	})
}

func TestAHelmReleaseIsCheckedBeforeAnythingIsDialled(t *testing.T) {
	cliPath(t)
	lab := &helmLab{t: t, kubeconfig: "/nonexistent", namespace: "apps"}
	steps := []resource.TestStep{}
	for _, test := range []struct{ configuration, wrong string }{
		{lab.release("./probe", `values = ["a: [hunter2"]`), `(?s)Unable to read the values.*document 1`},
		{lab.release("./probe", `values = ["a: 1", "- hunter2"]`), `(?s)Unable to read the values.*document 2`},
		{lab.release("./probe", `values = ["hunter2"]`), `(?s)Unable to read the values.*document 1`},
		{lab.release("./probe", `values = ["a: 1\n---\nb: hunter2"]`), `(?s)Unable to read the values.*several`},
		{lab.release("oci://charts.example/a:1.2.3"), `(?s)Unable to use the chart.*tag`},
		{lab.release("https://u:hunter2@charts.example/a.tgz"), `(?s)Unable to use the chart.*credentials`},
		{lab.release(lab.chart("1.0.0"), `version = "2.0.0"`), `(?s)Unable to use the chart.*1.0.0,\s+not\s+2.0.0`},
		{lab.release(lab.chart("not-a-version")), `(?s)Unable to use the chart`},
		{lab.release(lab.ruled(), `values = ["word: hunter2"]`), `(?s)Unable to use the values with the chart.*word`},
		{lab.release(lab.ruled(), `values = ["word: 1"]`, `set_wo = [{ name = "word", value = "hunter2" }]`, `set_wo_version = "1"`), `(?s)Unable to use the values with the chart.*word`},
		{lab.release("./probe", `version = "latest"`), `(?s)Unable to use the chart's version.*latest`},
		{lab.release("probe", `repository = "charts.example"`), `(?s)Unable to use the chart.*not a URL`},
		{lab.release("probe", `repository = "oci://charts.example/a"`), `(?s)Unable to use the chart.*needs no\s+repository`},
		{lab.release("oci://charts.example/a", `repository = "https://charts.example"`), `(?s)Unable to use the chart.*exclude`},
		{lab.release("./probe", `on_destroy = "keep"`), `(?s)on_destroy.*one of`},
		{lab.release("./probe", `repository_username = "u"`), `repository_password`},
		{lab.release("./probe", `timeouts = { create = "soon" }`), `Invalid Attribute Value Time Duration`},
		{lab.release("", ""), `(?s)Unable to use the chart.*No chart`},
		{lab.release("ftp://charts.example/a.tgz"), `(?s)Unable to use the chart.*neither`},
		{lab.release("https://charts.example/a.tgz", `repository = "https://charts.example"`), `(?s)Unable to use the chart.*exclude`},
		{lab.release("./probe", `version = "1.2.3.4"`), `(?s)Unable to use the chart's version`},
		{lab.release("./probe", `repository_password = "p"`), `repository_username`},
		{lab.release("./probe", `recover = "ignore"`), `(?s)recover.*one of`},
		{lab.release("./probe", `set = [{ name = "", value = "x" }]`), `(?s)name.*at least 1`},
		{lab.release("./probe", `set = [{ name = "a=b", value = "hunter2" }]`), `(?s)Unable to set a value.*not\s+the\s+path`},
		{lab.release("./probe", `set = [{ name = "a", value = "hunter2,b" }]`), `(?s)Unable to set a value.*value\s+of\s+a`},
		{lab.release("./probe", `set = [{ name = "a", value = "x", type = "number" }]`), `(?s)type.*one of`},
		{lab.release("./probe", `set = [{ name = "a" }]`), `(?s)value`},
		{lab.release("./probe", `set_list = [{ name = "a[x", value = ["hunter2"] }]`), `(?s)Unable to set a list.*value\s+of\s+a\[x`},
		{lab.release("./probe", `set_wo_version = "1"`), `set_wo`},
		{lab.release("./probe", `set_wo = [{ name = "a", value = "x" }]`), `set_wo_version`},
		{lab.release("./probe", `set_wo = [{ name = "a", value = "hunter2,b" }]`, `set_wo_version = "1"`), `(?s)Unable to set a value.*value\s+of\s+a`},
		{lab.release("./probe", `wait = "maybe"`), `(?s)wait.*bool`},
		{"provider \"capi\" {\n  registries = { \"https://quay.io\" = { ca_pem = \"x\" } }\n}\n" + lab.release("./probe"), `(?s)registries.*must be a host`},
		{"provider \"capi\" {\n  registries = { \"quay.io\" = { username = \"u\" } }\n}\n" + lab.release("./probe"), `(?s)password`},
		{strings.Replace(lab.release("./probe"), `"apps"`, `"Apps"`, 1), `(?s)namespace.*DNS label`},
		{strings.Replace(lab.release("./probe"), `name      = "probe"`, `name      = "Probe"`, 1), `(?s)Unable to use the release's name`},
		{strings.Replace(lab.release("./probe"), `kubeconfig_path = "/nonexistent"`, ``, 1), `(?s)Unable to find out how to reach the cluster`},
		{strings.Replace(lab.release("./probe"), `kubeconfig_path =`, `cluster_name = "a", kubeconfig_path =`, 1), `(?s)Unable to choose how to reach the cluster`},
	} {
		steps = append(steps, resource.TestStep{Config: test.configuration, PlanOnly: true, ExpectError: regexp.MustCompile(test.wrong)})
	}
	resource.UnitTest(t, resource.TestCase{ProtoV6ProviderFactories: testProviders(), Steps: steps})
}

func TestAHelmReleaseCanBePlannedWithNothingRunning(t *testing.T) {
	cliPath(t)
	lab := &helmLab{t: t, kubeconfig: "/nonexistent", namespace: "apps"}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		Steps:                    []resource.TestStep{{Config: lab.release("oci://registry.example/none"), PlanOnly: true, ExpectNonEmptyPlan: true}},
	})
}

func TestThePhaseOfARelease(t *testing.T) {
	model := func() *helmReleaseModel {
		return &helmReleaseModel{Instance: text("me"), ChartVersion: text("1.0.0")}
	}
	record := func(change func(*helm.Release)) *helm.Release {
		r := &helm.Release{Status: "deployed", Version: "1.0.0", Owner: "me", ValuesHash: helm.HashValues(nil)}
		change(r)
		return r
	}
	for name, test := range map[string]struct {
		change func(*helm.Release)
		want   string
	}{
		"as it was left":        {func(*helm.Release) {}, phaseReady},
		"failed":                {func(r *helm.Release) { r.Status = "failed" }, "failed"},
		"other values":          {func(r *helm.Release) { r.ValuesHash = helm.HashValues(map[string]any{"a": 1}) }, "changed-outside"},
		"another chart version": {func(r *helm.Release) { r.Version = "1.0.1" }, "changed-outside"},
		"another owner's mark":  {func(r *helm.Release) { r.Owner = "you" }, "not-marked"},
	} {
		if got := model().phaseOf(t.Context(), record(test.change), 0); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}
