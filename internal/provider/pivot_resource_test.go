// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func TestPivot(t *testing.T) {
	lab := newPivotLab(t)
	for _, test := range []struct {
		name string
		run  func(*pivotLab)
	}{
		{"moves what the plan told, keeps the state of a target that does not answer, is imported, and is forgotten", testPivotLife},
		{"refuses at plan what a foreign owner would leave behind, and carries it when asked to", testPivotForeignOwner},
		{"moves a single Cluster and leaves its neighbour", testPivotSingle},
		{"ends a move that clusterctl left half done when it is allowed to", testPivotAdopts},
		{"refuses a backup without a key at plan", testPivotBackupWithoutKey},
		{"is brought to one side by the next apply after a kill", testPivotKilled},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(lab.in(t)) })
	}
}

// The CLI's commands that the tests run over and over.
var (
	runPlan  = []string{"plan", "-input=false", "-no-color"}
	runApply = []string{"apply", "-auto-approve", "-input=false", "-no-color"}
)

func (lab *pivotLab) says(out string, wanted ...string) {
	lab.t.Helper()
	for _, want := range wanted {
		if !strings.Contains(flat(out), want) {
			lab.t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

// empty fails unless the next plan changes nothing, and answers what it says.
func (lab *pivotLab) empty(w *workspace) string {
	lab.t.Helper()
	out, err := w.run(append(runPlan, "-detailed-exitcode")...)
	if err != nil {
		lab.t.Errorf("the plan is not empty: %v\n%s", err, out)
	}
	return out
}

func testPivotLife(lab *pivotLab) {
	lab.cluster("life", "kmgt")
	backups := lab.t.TempDir()
	w := newWorkspace(lab.t, "provider \"capi\" {\n  backup_passphrase = \"correct horse battery\"\n}\n"+lab.config(`namespaces = ["life"]`, fmt.Sprintf("backup = { directory = %q }", backups)))
	lab.says(w.must(runPlan...), "What the pivot will move", "The Clusters life/kmgt move to the target, with 1 Cluster, 1 Machine, 1 Secret")
	w.must(runApply...)
	lab.managed("life", "kmgt", "target")
	lab.empty(w)
	if found, err := filepath.Glob(filepath.Join(backups, "pivot-*.tar.age")); err != nil || len(found) != 1 {
		lab.t.Errorf("the backups are %v, %v", found, err)
	}
	state, err := os.ReadFile(filepath.Join(w.dir, "terraform.tfstate"))
	lab.must(err)
	if strings.Contains(string(state), "battery") {
		lab.t.Error("the passphrase is in state")
	}
	lab.says(w.must("show", "-no-color"), `"Cluster" = 1`, `"proxmox://life-kmgt"`, `phase = "ready"`)

	lab.sides["target"].SetDown(true)
	lab.says(lab.empty(w), "Unable to refresh the pivot", "The prior state is kept")
	lab.sides["target"].SetDown(false)

	// A journal knows nothing of prove_for: an import takes the default.
	again := newWorkspace(lab.t, strings.Replace(lab.config(`namespaces = ["life"]`), `prove_for = "0s"`, "", 1))
	again.must("import", "-input=false", "-no-color", "capi_pivot.it", lab.sides["target"].kubeconfig+"##"+lab.sides["source"].kubeconfig)
	lab.empty(again)

	w.must("destroy", "-auto-approve", "-input=false", "-no-color")
	lab.managed("life", "kmgt", "target")
}

func testPivotForeignOwner(lab *pivotLab) {
	cluster := lab.cluster("foreign", "kmgt")
	source, ctx := lab.sides["source"], lab.t.Context()
	stranger := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "foreign", Name: "application"}}
	lab.must(source.Create(ctx, stranger))
	lab.must(source.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "foreign", Name: "held", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "kmgt", UID: cluster.UID}, {APIVersion: "v1", Kind: "ConfigMap", Name: "application", UID: stranger.UID},
	}}}))
	w := newWorkspace(lab.t, lab.config(`namespaces = ["foreign"]`))
	for _, command := range [][]string{runPlan, runApply} {
		out, err := w.run(command...)
		if err == nil {
			lab.t.Errorf("the %s succeeds:\n%s", command[0], out)
		}
		lab.says(out, "Secret foreign/held would be left behind: its owner ConfigMap application does not move", "Nothing was changed")
	}
	lab.managed("foreign", "kmgt", "source")
	w.configure(lab.config(`namespaces = ["foreign"]`, `foreign_owners = "carry"`))
	w.must(runApply...)
	lab.managed("foreign", "kmgt", "target")
	lab.empty(w)
}

func testPivotSingle(lab *pivotLab) {
	lab.cluster("single", "one")
	lab.cluster("single", "two")
	w := newWorkspace(lab.t, lab.config(`clusters = ["single/one"]`))
	out := w.must(runApply...)
	lab.says(out, "The Clusters single/one move to the target, with 1 Cluster, 1 Machine, 1 Secret")
	lab.managed("single", "one", "target")
	lab.managed("single", "two", "source")
	lab.empty(w)
}

func testPivotAdopts(lab *pivotLab) {
	cluster := lab.cluster("adopted", "kmgt")
	ctx := lab.t.Context()
	// clusterctl paused the source, copied the Cluster, and was ended.
	lab.must(lab.sides["source"].Patch(ctx, cluster, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"paused":true}}`)), client.FieldOwner("clusterctl")))
	lab.must(lab.sides["target"].EnsureNamespace(ctx, "adopted"))
	copied := lab.copyOf("adopted", "kmgt")
	copied.Spec.Paused = ptr.To(true)
	lab.must(lab.sides["target"].Create(ctx, copied, client.FieldOwner("clusterctl")))
	w := newWorkspace(lab.t, lab.config(`namespaces = ["adopted"]`))
	out, err := w.run(runApply...)
	if err == nil {
		lab.t.Errorf("the apply succeeds:\n%s", out)
	}
	lab.says(out, "An earlier move stopped in the middle", "With adopt_failed_move = true the next apply does this")
	w.configure(lab.config(`namespaces = ["adopted"]`, "adopt_failed_move = true"))
	w.must(runApply...)
	lab.managed("adopted", "kmgt", "target")
	lab.empty(w)
}

func testPivotBackupWithoutKey(lab *pivotLab) {
	lab.t.Setenv(passphraseVariable, "")
	w := newWorkspace(lab.t, lab.config(`namespaces = ["none"]`, `backup = { directory = "backups" }`))
	out, err := w.run(runPlan...)
	if err == nil {
		lab.t.Errorf("the plan succeeds:\n%s", out)
	}
	lab.says(out, "Unable to encrypt the backup", "backup_passphrase")
}

// testPivotKilled kills the provider while it writes to each side; the engine's
// tests do so at each write.
func testPivotKilled(lab *pivotLab) {
	lab.cluster("undisturbed", "kmgt")
	w := newWorkspace(lab.t, lab.config(`namespaces = ["undisturbed"]`))
	writes := map[string]int{}
	for _, side := range lab.sides {
		side.Strike(0, nil)
	}
	w.must(runApply...)
	for name, side := range lab.sides {
		if writes[name] = side.Strike(0, nil); writes[name] < 6 {
			lab.t.Fatalf("an undisturbed move writes only %d times to the %s", writes[name], name)
		}
	}
	for _, strike := range []struct {
		name, side string
		at         int
	}{
		{"while it copies", "target", writes["target"] / 2},
		{"while it removes", "source", writes["source"] - 4},
		{"when all is written", "target", writes["target"]},
	} {
		lab.t.Run(strike.name, func(t *testing.T) {
			lab, namespace := lab.in(t), fmt.Sprintf("killed-%s-%d", strike.side, strike.at)
			lab.cluster(namespace, "kmgt")
			w := newWorkspace(t, lab.config(fmt.Sprintf("namespaces = [%q]", namespace)))
			lab.sides[strike.side].Strike(strike.at, w.kill)
			if out, err := w.run(runApply...); err == nil {
				t.Fatalf("the apply whose provider was killed succeeds:\n%s", out)
			}
			lab.sides[strike.side].Strike(0, nil)
			w.must(runApply...)
			lab.managed(namespace, "kmgt", "target")
			lab.empty(w)
		})
	}
}
