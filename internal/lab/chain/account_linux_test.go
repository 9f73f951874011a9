// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package chain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	pve "github.com/luthermonson/go-proxmox"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/cluster"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/proxmox"
)

// machinePool is the resource pool that the account may make machines in.
const machinePool = "capi"

// machinesMade is how many machines the test makes: one, and twice two more.
const machinesMade = 5

// overlap is how long a token works on after its rotation: long enough for new
// credentials to arrive, and over before the cluster is scaled down again.
const overlap = 90 * time.Second

// journal holds what the hypervisor has answered.
type journal struct {
	mu      sync.Mutex
	answers []pvesim.Answer
}

func (j *journal) observe(a pvesim.Answer) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.answers = append(j.answers, a)
}

// of answers the calls that satisfy a condition.
func (j *journal) of(condition func(pvesim.Answer) bool) []pvesim.Answer {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []pvesim.Answer
	for _, a := range j.answers {
		if condition(a) {
			out = append(out, a)
		}
	}
	return out
}

// The calls by which machines come and go.
var (
	cloned  = regexp.MustCompile(`^POST /nodes/[^/]+/qemu/\d+/clone$`)
	deleted = regexp.MustCompile(`^DELETE /nodes/[^/]+/qemu/\d+$`)
	iso     = regexp.MustCompile(`^DELETE /nodes/[^/]+/storage/local/content/.*user-data-\d+\.iso$`)
)

// count says how often a token made a call with success.
func (j *journal) count(token string, call *regexp.Regexp) int {
	return len(j.of(func(a pvesim.Answer) bool {
		return a.Caller == token && a.Status == http.StatusOK && call.MatchString(a.Method+" "+a.Path)
	}))
}

// makeAccount makes the account, as little as it can be for a template: confined
// to one pool, one storage each for disks and cloud-init images, one bridge.
func (w *world) makeAccount(ctx context.Context, template proxmox.Template) {
	w.t.Helper()
	raw := pve.NewClient(w.lab.PVE.APIURL(), pve.WithHTTPClient(w.http()), pve.WithAPIToken(lab.TokenID, w.lab.TokenSecret()))
	if err := raw.NewPool(ctx, machinePool, ""); err != nil {
		w.t.Fatal(err)
	}
	w.account.Scope = proxmox.Scope{
		Pool: machinePool, TemplateIDs: []int64{int64(template.VMID)},
		DiskStorages: []string{"local-lvm"}, ImageStorages: []string{"local"}, Bridges: []string{"vmbr0"},
	}
	w.issue(ctx)
}

// issue brings the account to what it is to be and keeps its token.
func (w *world) issue(ctx context.Context) {
	w.t.Helper()
	issued, err := w.admin.EnsureAccount(ctx, w.account, w.holder, w.report)
	if err != nil {
		w.t.Fatal(err)
	}
	w.account.CurrentToken, w.holder.Secret = issued.Name, issued.Secret
	if err := w.admin.KeepAccount(ctx, w.found(ctx)); err != nil {
		w.t.Fatal(err)
	}
}

// found is the account as it stands, without fault.
func (w *world) found(ctx context.Context) proxmox.Account {
	w.t.Helper()
	account, err := w.admin.ReadAccount(ctx, w.account)
	if err != nil || len(account.Faults) > 0 {
		w.t.Fatalf("the account is %+v, %v", account, err)
	}
	return account
}

// rotate has the account's token replaced while the control plane is scaled up
// with it: both tokens work while machines are made and deleted. When the first one
// has run out it is removed, and the next machines are made with the new one alone.
func (w *world) rotate(ctx context.Context, home cluster.Home, runtime bootstrap.Manager) {
	w.t.Helper()
	old := w.account.TokenID()
	w.order(ctx, home, 3)
	w.await(ctx, "another machine cloned", func(context.Context) error {
		if n := len(w.machines()); n < 2 {
			return fmt.Errorf("%d machines", n)
		}
		return nil
	})
	w.holder.Rotate, w.holder.Overlap = true, overlap
	w.issue(ctx)
	w.holder.Rotate = false
	if retiring := w.found(ctx).Retiring; len(retiring) != 1 || !retiring[0].Until.After(time.Now()) {
		w.t.Fatalf("beside %s there is %+v", w.account.TokenID(), retiring)
	}
	w.order(ctx, home, 3) // with the new secret
	if _, err := runtime.Ensure(ctx, w.spec(), w.report); err != nil {
		w.t.Fatal(err)
	}
	w.awaitMachines(ctx, home.Client, 3)
	w.order(ctx, home, 1)
	w.awaitMachines(ctx, home.Client, 1)
	w.await(ctx, "the first token run out", func(ctx context.Context) error {
		if len(w.found(ctx).Expired()) == 0 {
			return errors.New("it works")
		}
		return nil
	})
	if err := w.admin.SweepTokens(ctx, w.found(ctx)); err != nil {
		w.t.Fatal(err)
	}
	if tokens := w.lab.PVE.Summary().Tokens; slices.Contains(tokens, old) || !slices.Contains(tokens, w.account.TokenID()) {
		w.t.Errorf("after the rotation the tokens are %v", tokens)
	}
	before := w.calls.count(w.account.TokenID(), cloned)
	w.order(ctx, home, 3)
	w.awaitMachines(ctx, home.Client, 3)
	if n := w.calls.count(w.account.TokenID(), cloned) - before; n < 2 {
		w.t.Errorf("%d machines were cloned with the new token alone, want 2", n)
	}
}

// machines are the names of the VMs that are no template, each with whether one
// of that name runs. There may be two of a name: where Cluster API's Proxmox
// provider reads from a cache that does not know a clone yet, it clones once more
// and forgets the first (see proxmox.Client.StrayClones).
func (w *world) machines() map[string]bool {
	out := map[string]bool{}
	for _, vm := range w.lab.PVE.Summary().VMs {
		if !vm.Template {
			out[vm.Name] = out[vm.Name] || vm.Running
		}
	}
	return out
}

// running is how many machines run.
func (w *world) running() (n int) {
	for _, runs := range w.machines() {
		if runs {
			n++
		}
	}
	return n
}

// checkCalls looks through all that was called in the account's name: nothing
// was refused, and every part of a machine's life was among it.
func (w *world) checkCalls() {
	w.t.Helper()
	refused := w.calls.of(func(a pvesim.Answer) bool {
		return strings.HasPrefix(a.Caller, w.account.UserID) && (a.Status == http.StatusUnauthorized || a.Status == http.StatusForbidden)
	})
	if len(refused) > 0 {
		w.t.Errorf("Proxmox VE has refused the account %d calls: %+v", len(refused), refused)
	}
	first := w.account
	first.CurrentToken = ""
	total := map[string]int{}
	for what, call := range map[string]*regexp.Regexp{"cloned": cloned, "deleted": deleted, "rid of their images": iso} {
		total[what] = w.calls.count(first.TokenID(), call) + w.calls.count(w.account.TokenID(), call)
	}
	strays := len(w.lab.PVE.Summary().VMs) - 1
	if total["cloned"]-strays != machinesMade || total["deleted"] < machinesMade || total["rid of their images"] == 0 {
		w.t.Errorf("of %d machines were %v, and %d clones are left", machinesMade, total, strays)
	}
	all := w.calls.of(func(a pvesim.Answer) bool { return strings.HasPrefix(a.Caller, w.account.UserID) })
	w.report(context.Background(), "chain", fmt.Sprintf("%d calls of the account, %d of them refused: %v machines, %d stray clones", len(all), len(refused), total, strays))
}
