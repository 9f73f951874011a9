// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package acceptance

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	tfjson "github.com/hashicorp/terraform-json"
	"github.com/luthermonson/go-proxmox"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/artifacts"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/stack"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// untilInterrupt ends when somebody interrupts the tests, so that they still
// take down what they have put up.
var untilInterrupt context.Context

func TestMain(m *testing.M) {
	sandbox.ReexecMain() // pods and supervisors are this program again
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	untilInterrupt = ctx
	code := m.Run()
	stop()
	os.Exit(code)
}

// bootstrapName is the name of the bootstrap cluster in the example.
const bootstrapName = "ephemeral-cluster"

// world is a lab and the example's stack on it.
type world struct {
	dir     string
	options lab.Options
	lab     *lab.Lab
	stack   *stack.Stack
	audit   auditLogs
	// secret is that of the administrator's token.
	secret string
}

func newWorld(ctx context.Context, t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "acc") // a short path: unix sockets lie below it
	if err != nil {
		t.Fatal(err)
	}
	report := reporter(t)
	w := &world{dir: dir}
	// In reverse: the bootstrap cluster, the lab, a look at what is left, the folder.
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("removing the test's folder: %v", err)
		}
	})
	t.Cleanup(func() {
		if left := processesOf(t, dir); len(left) > 0 {
			t.Errorf("processes are left: %q", left)
		}
	})
	set, err := artifacts.Ensure(ctx, report)
	if err != nil {
		t.Fatal(err)
	}
	w.options = lab.Options{Dir: filepath.Join(dir, "lab"), Artifacts: set, Timing: pvesim.RealTiming().Scale(0.1), Report: report}
	w.start(ctx, t)
	t.Cleanup(func() { w.stop(t) })
	t.Cleanup(func() {
		if err := (local.Runtime{State: w.state()}).Delete(context.Background(), bootstrapName); err != nil {
			t.Errorf("removing the bootstrap cluster: %v", err)
		}
	})
	w.stack = w.newStack(ctx, t, report)
	w.keepAudit(t)
	return w
}

func (w *world) keepAudit(t *testing.T) {
	w.audit = auditLogs{dir: w.dir, kept: map[string]string{}}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		w.audit.keep(map[string]string{"bootstrap": w.state(), "management": w.options.Dir}, stop)
	}()
	t.Cleanup(func() { close(stop); <-stopped })
}

func reporter(t *testing.T) progress.Reporter {
	start := time.Now()
	return func(_ context.Context, phase, message string) {
		fmt.Fprintf(os.Stderr, "    %s %6.1fs %s: %s\n", t.Name(), time.Since(start).Seconds(), phase, message)
	}
}

func (w *world) state() string { return filepath.Join(w.dir, "state") }

func (w *world) start(ctx context.Context, t *testing.T) {
	t.Helper()
	started, err := lab.Start(ctx, w.options)
	if err != nil {
		t.Fatal(err)
	}
	w.lab, w.secret = started, started.TokenSecret()
	w.options.Block = started.Block
}

func (w *world) stop(t *testing.T) {
	t.Helper()
	if w.lab == nil {
		return
	}
	if err := w.lab.Close(); err != nil {
		t.Errorf("stopping the lab: %v", err)
	}
	w.lab = nil
}

func (w *world) newStack(ctx context.Context, t *testing.T, report progress.Reporter) *stack.Stack {
	t.Helper()
	source, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(w.dir, "bin")
	if err := stack.BuildProvider(ctx, source, program); err != nil {
		t.Fatal(err)
	}
	cli, err := artifacts.CLI(ctx, report)
	if err != nil {
		t.Fatal(err)
	}
	variables := w.lab.Variables()
	variables["bootstrap_name"] = bootstrapName
	made, err := stack.New(stack.Options{
		Dir: filepath.Join(w.dir, "stack"), Example: filepath.Join(source, "examples", "talos-proxmox"), CLI: cli, Provider: program,
		Variables: variables, Output: os.Stderr, Env: map[string]string{"CAPI_STATE_DIR": w.state()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// client answers a client of the management cluster through the output that a
// user has.
func (w *world) client(ctx context.Context, t *testing.T) *kube.Client {
	t.Helper()
	var kubeconfig string
	if err := w.stack.Output(ctx, "kubeconfig", &kubeconfig); err != nil {
		t.Fatal(err)
	}
	config, err := kube.ConfigFromKubeconfig([]byte(kubeconfig), "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := kube.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) checkTalosconfig(ctx context.Context, t *testing.T) {
	t.Helper()
	var talosconfig string
	if err := w.stack.Output(ctx, "talosconfig", &talosconfig); err != nil {
		t.Fatal(err)
	}
	config, err := clientconfig.FromString(talosconfig)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(ctx, client.WithConfig(config))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	version, err := c.Version(ctx)
	if err != nil || len(version.Messages) == 0 || !strings.HasPrefix(version.Messages[0].Version.Tag, "v1.13") {
		t.Errorf("the machine answers %v, %v", version, err)
	}
}

// machine is one of the output machines.
type machine struct {
	Name   string `json:"name"`
	VMID   int    `json:"vm_id"`
	VMUUID string `json:"vm_uuid"`
}

func (w *world) machines(ctx context.Context, t *testing.T) []machine {
	t.Helper()
	var machines []machine
	if err := w.stack.Output(ctx, "machines", &machines); err != nil {
		t.Fatal(err)
	}
	if len(machines) != 1 || machines[0].VMID == 0 || machines[0].VMUUID == "" {
		t.Fatalf("machines %+v, want one with a VM", machines)
	}
	return machines
}

// noSecrets looks that the administrator's token is not in a plan.
func (w *world) noSecrets(t *testing.T, plan *tfjson.Plan) {
	t.Helper()
	for _, change := range plan.ResourceChanges {
		raw, err := json.Marshal(change)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte(w.secret)) {
			t.Errorf("the plan of %s holds the administrator's token", change.Address)
		}
	}
}

func changed(plan *tfjson.Plan) []string {
	var changes []string
	for _, change := range plan.ResourceChanges {
		if !slices.Equal(change.Change.Actions, tfjson.Actions{tfjson.ActionNoop}) {
			changes = append(changes, fmt.Sprintf("%s %v", change.Address, change.Change.Actions))
		}
	}
	return changes
}

// runningVMs lists the running VMs of the cluster's machines by their UUIDs,
// sorted.
func (w *world) runningVMs() []string {
	var uuids []string
	for _, vm := range w.lab.PVE.Summary().VMs {
		if strings.HasPrefix(vm.Name, machinePrefix) && vm.Running {
			uuids = append(uuids, vm.UUID)
		}
	}
	slices.Sort(uuids)
	return uuids
}

// machinePrefix starts the names of the cluster's VMs.
const machinePrefix = "kmgt"

// checkNoDuplicates looks that there is one template, one user and one token, and
// no VM but the machine, however often the provider was killed. CAPMOX itself may
// have cloned twice, from a cache that did not know its first clone yet; that
// clone is stopped and bears the machine's name, and the destroy removes it.
func (w *world) checkNoDuplicates(t *testing.T) {
	t.Helper()
	templates, machineName := 0, ""
	summary := w.lab.PVE.Summary()
	for _, vm := range summary.VMs {
		switch {
		case vm.Template:
			templates++
		case vm.Running:
			machineName = vm.Name
		}
	}
	for _, vm := range summary.VMs {
		if !vm.Template && !vm.Running {
			t.Logf("a clone that CAPMOX has forgotten: %+v", vm)
			if vm.Name != machineName {
				t.Errorf("VM %+v is neither the template nor a clone for the machine %s", vm, machineName)
			}
		}
	}
	// The administrator's are among the users and tokens.
	if templates != 1 || len(summary.Users) > 2 || len(summary.Tokens) != 2 {
		t.Errorf("%d templates, users %v, tokens %v, want one of each beside the administrator's", templates, summary.Users, summary.Tokens)
	}
}

// cloneAgain clones the template under the machine's name, as CAPMOX does when it
// has forgotten its first clone.
func (w *world) cloneAgain(ctx context.Context, t *testing.T) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.lab.PVE.CA())
	api := proxmox.NewClient(w.lab.PVE.URL()+"/api2/json", proxmox.WithAPIToken(lab.TokenID, w.secret),
		proxmox.WithHTTPClient(&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}))
	vms := w.lab.PVE.Summary().VMs
	template := vms[slices.IndexFunc(vms, func(vm pvesim.VMSummary) bool { return vm.Template })]
	running := vms[slices.IndexFunc(vms, func(vm pvesim.VMSummary) bool { return vm.Running })]
	node, err := api.Node(ctx, template.Node)
	if err != nil {
		t.Fatal(err)
	}
	vm, err := node.VirtualMachine(ctx, template.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, task, err := vm.Clone(ctx, &proxmox.VirtualMachineCloneOptions{Name: running.Name})
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(ctx, 100*time.Millisecond, time.Minute); err != nil {
		t.Fatal(err)
	}
}
