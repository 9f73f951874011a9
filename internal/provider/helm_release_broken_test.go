// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/helm"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// testHelmKilled kills the provider at some of its writing calls: the first one,
// one in the middle, the one that records the success, and the last one. The
// engine's tests do so at each. What follows wants another version of the chart,
// but after the last one: nothing tells a release that was finished without
// being in state from one that is in another state.
func testHelmKilled(t *testing.T, lab *helmLab) {
	first, second := lab.release(lab.chart("1.0.0"), `values = ["word: one"]`), lab.release(lab.chart("1.1.0"), `values = ["word: two"]`)
	if err := lab.EnsureNamespace(t.Context(), lab.namespace); err != nil {
		t.Fatal(err)
	}
	w := newWorkspace(t, first)
	lab.Strike(0, nil)
	w.must("apply", "-auto-approve", "-input=false")
	writes := lab.Strike(0, nil)
	if writes < 5 {
		t.Fatalf("an undisturbed apply writes only %d times", writes)
	}
	w.must("destroy", "-auto-approve", "-input=false")
	for _, i := range []int{1, writes/2 + 1, writes - 1, writes} {
		t.Run(fmt.Sprintf("write %d", i), func(t *testing.T) {
			w := newWorkspace(t, first)
			lab.Strike(i, w.kill)
			if out, err := w.run("apply", "-auto-approve", "-input=false"); err == nil {
				t.Fatalf("the apply whose provider was killed succeeds:\n%s", out)
			}
			lab.Strike(0, nil)
			want := "one"
			if i < writes {
				want = "two"
				w.configure(second)
			}
			out := w.must("apply", "-auto-approve", "-input=false", "-no-color")
			if warned := strings.Contains(out, "The Helm release was there already"); warned != (i == writes) {
				t.Errorf("a warning of a finished release: %v\n%s", warned, out)
			}
			if word, err := lab.word(); err != nil || word != want {
				t.Errorf("the release says %q, %v", word, err)
			}
			if record, err := lab.record(); err != nil || !record.Deployed() {
				t.Errorf("the release is %+v, %v", record, err)
			}
			if out, err := w.run("plan", "-detailed-exitcode", "-input=false"); err != nil {
				t.Errorf("the plan after it is not empty: %v\n%s", err, out)
			}
			w.must("destroy", "-auto-approve", "-input=false")
			if err := lab.gone(); err != nil {
				t.Error(err)
			}
		})
	}
}

// testHelmRenamed kills the provider in the middle of an install, after which the
// configuration gives the release another name: what is left under the first one is told.
func testHelmRenamed(t *testing.T, lab *helmLab) {
	first := lab.release(lab.chart("1.0.0"), `values = ["word: one"]`)
	w := newWorkspace(t, first)
	lab.Strike(4, w.kill)
	if out, err := w.run("apply", "-auto-approve", "-input=false"); err == nil {
		t.Fatalf("the apply whose provider was killed succeeds:\n%s", out)
	}
	lab.Strike(0, nil)
	left := lab.namespace + "/probe"
	err := kube.Wait(t.Context(), "the killed run's lease to run out", func(ctx context.Context) (bool, string, error) {
		names, err := helm.Unfinished(ctx, lab.Client)
		return slices.Contains(names, left), strings.Join(names, " "), err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.configure(strings.Replace(first, `name      = "probe"`, `name      = "renamed"`, 1))
	if out := w.must("apply", "-auto-approve", "-input=false", "-no-color"); !strings.Contains(out, "Unfinished Helm releases") || !strings.Contains(out, left) {
		t.Errorf("nothing is told of the first release:\n%s", out)
	}
	w.must("destroy", "-auto-approve", "-input=false")
	w.configure(first)
	if out := w.must("apply", "-auto-approve", "-input=false", "-no-color"); strings.Contains(out, left+" on the cluster") {
		t.Errorf("the release itself is told as another one:\n%s", out)
	}
	w.must("destroy", "-auto-approve", "-input=false")
	if err := lab.gone(); err != nil {
		t.Error(err)
	}
}

// testHelmTwoStates has two states of two configurations want the same release,
// one after the other and both at once.
func testHelmTwoStates(t *testing.T, lab *helmLab) {
	w := newWorkspace(t, lab.release(lab.chart("1.0.0"), `values = ["word: one"]`))
	w.must("apply", "-auto-approve", "-input=false")
	other := newWorkspace(t, lab.release(lab.chart("1.0.0"), `values = ["word: two"]`))
	out, err := other.run("apply", "-auto-approve", "-input=false", "-no-color")
	if text := strings.Join(strings.Fields(strings.ReplaceAll(out, "│", "")), " "); err == nil || !strings.Contains(text, "belongs to somebody else") || !strings.Contains(text, "terraform import") {
		t.Errorf("the second state's apply: %v\n%s", err, out)
	}
	if state, _ := other.run("state", "list"); strings.Contains(state, helmAddress) {
		t.Errorf("the second state has\n%s", state)
	}
	if out, err := w.run("plan", "-detailed-exitcode", "-input=false"); err != nil {
		t.Errorf("the first state's plan is not empty: %v\n%s", err, out)
	}
	w.configure(lab.release(lab.chart("1.1.0", unready), `values = ["word: one"]`))
	var during string
	if _, err := w.interrupted(func(ctx context.Context) error {
		err := kube.Wait(ctx, "the first state's upgrade to wait", func(ctx context.Context) (bool, string, error) {
			_, err := lab.Object(ctx, "apps/v1", "Deployment", lab.namespace, "probe")
			return err == nil, "", err
		})
		if err == nil {
			during, err = other.run("apply", "-auto-approve", "-input=false", "-no-color")
			if err == nil {
				return fmt.Errorf("it succeeded: %s", during)
			}
		}
		return nil
	}, "apply", "-auto-approve", "-input=false"); err == nil {
		t.Error("the interrupted upgrade succeeds")
	}
	if !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(during, "│", "")), " "), "another run") {
		t.Errorf("beside the first state's run the second one says:\n%s", during)
	}
	w.configure(lab.release(lab.chart("1.2.0"), `values = ["word: three"]`))
	w.must("apply", "-auto-approve", "-input=false")
	if word, err := lab.word(); err != nil || word != "three" {
		t.Errorf("the release says %q, %v", word, err)
	}
	w.must("destroy", "-auto-approve", "-input=false")
	if err := lab.gone(); err != nil {
		t.Error(err)
	}
}

// testHelmRevoked has the API server refuse the credentials from the middle of an
// install on. With others the next apply goes on.
func testHelmRevoked(t *testing.T, lab *helmLab) {
	w := newWorkspace(t, lab.release(lab.chart("1.0.0"), `values = ["word: one"]`))
	lab.Strike(4, func() { lab.SetRevoked(true) })
	out, err := w.run("apply", "-auto-approve", "-input=false", "-no-color")
	lab.Strike(0, nil)
	if err == nil || !strings.Contains(out, "Unable to install the Helm release") {
		t.Fatalf("the apply whose credentials were revoked: %v\n%s", err, out)
	}
	if state := w.must("state", "list"); !strings.Contains(state, helmAddress) {
		t.Errorf("state has\n%s", state)
	}
	// Neither is it lost to a refresh, nor does a destroy pretend to have done it.
	if out, err := w.run("destroy", "-auto-approve", "-input=false", "-no-color"); err == nil || !strings.Contains(strings.Join(strings.Fields(out), " "), "client to provide credentials") {
		t.Errorf("the destroy without credentials: %v\n%s", err, out)
	}
	lab.SetRevoked(false)
	w.must("apply", "-auto-approve", "-input=false")
	if word, err := lab.word(); err != nil || word != "one" {
		t.Errorf("the release says %q, %v", word, err)
	}
	w.must("destroy", "-auto-approve", "-input=false")
	if err := lab.gone(); err != nil {
		t.Error(err)
	}
}

// testHelmHugeValues gives values that no Secret holds, as compressed as the
// record is.
func testHelmHugeValues(t *testing.T, lab *helmLab) {
	noise := make([]byte, 1<<20)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte("noise: "+base64.StdEncoding.EncodeToString(noise)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorkspace(t, lab.release(lab.chart("1.0.0"), fmt.Sprintf("values = [file(%q)]", file)))
	out, err := w.run("apply", "-auto-approve", "-input=false", "-no-color")
	text := strings.Join(strings.Fields(strings.ReplaceAll(out, "│", "")), " ")
	if err == nil || !strings.Contains(text, "1 MiB") || !strings.Contains(text, "No release was made") || len(out) > 10_000 {
		t.Errorf("the apply: %v\n%.5000s", err, out)
	}
	if err := lab.gone(); err != nil {
		t.Error(err)
	}
}
