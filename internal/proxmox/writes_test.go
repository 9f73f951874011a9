// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// errFaulty says that work came to its end and what it was for did not.
var errFaulty = errors.New("faulty")

// work is what is done to something that is there already. Each run looks at how
// things stand first, as the resources do.
type work struct {
	name   string
	writes int // at least, of an undisturbed run
	begin  func(*rig) func(context.Context) error
	done   func(*rig) error
}

// onTemplate is work on a template that was kept, with the image file beside it.
func onTemplate(do func(context.Context, *rig, Template) error) func(*rig) func(context.Context) error {
	return func(r *rig) func(context.Context) error {
		for _, pool := range []string{"one", "two"} {
			r.raw(http.MethodPost, "/pools", map[string]any{"poolid": pool})
		}
		made := r.generation(0, func(s *TemplateSpec) { s.KeepImage, s.Pool = true, "one" })
		return func(ctx context.Context) error {
			fresh, err := r.client().ReadTemplate(ctx, made.Node, made.VMID, made.UUID)
			if kube.IsAbsent(err) {
				return nil // which drops it from the state
			}
			if err != nil {
				return err
			}
			return do(ctx, r, fresh)
		}
	}
}

func nothingLeft(r *rig) error {
	s := r.sim.Summary()
	acl, err := r.client().acl(r.t.Context())
	if len(s.VMs)+len(s.Files)+len(s.Users)+len(s.Roles)+len(acl) > 0 || len(s.Tokens) != 1 {
		return fmt.Errorf("%w: there is still %+v, %+v", errFaulty, s, acl)
	}
	return err
}

// onAccount is work on an account that was kept.
func onAccount(do func(context.Context, *rig, AccountSpec, Holder) error) func(*rig) func(context.Context) error {
	return func(r *rig) func(context.Context) error {
		for _, pool := range []string{"capi", "templates"} {
			r.raw(http.MethodPost, "/pools", map[string]any{"poolid": pool})
		}
		spec := accountSpec()
		spec.Scope = fullScope()
		h := r.kept(spec)
		h.Prior = &spec
		return func(ctx context.Context) error { return do(ctx, r, spec, h) }
	}
}

func changedTemplate(t Template) TemplateSpec {
	s := TemplateSpec{Labels: t.Labels, Family: t.Family(), Instance: t.Instance, TemplateSettings: t.TemplateSettings}
	s.Cores, s.Tags, s.Pool, s.Description, s.Serial = 8, []string{"z"}, "two", "", false
	return s
}

// articleSpec is the confined account with other permissions and another comment.
func articleSpec(spec AccountSpec) AccountSpec {
	spec.Permissions, spec.Scope, spec.Comment = Article, Scope{}, "other"
	return spec
}

func works() []work {
	return []work{
		{"a template is changed", 2, onTemplate(func(ctx context.Context, r *rig, t Template) error {
			_, err := r.client().UpdateTemplate(ctx, t, changedTemplate(t))
			return err
		}), func(r *rig) error {
			t, err := r.client().ReadTemplate(r.t.Context(), "pve1", 100, "")
			if err == nil && (!t.Same(changedTemplate(t).TemplateSettings) || !t.Kept()) {
				err = fmt.Errorf("%w: it is %+v", errFaulty, t)
			}
			return err
		}},
		{"a template is marked as kept", 1, func(r *rig) func(context.Context) error {
			made := r.make(r.spec())
			return func(ctx context.Context) error {
				fresh, err := r.client().ReadTemplate(ctx, made.Node, made.VMID, made.UUID)
				if err != nil {
					return err
				}
				return r.client().KeepTemplate(ctx, fresh)
			}
		}, func(r *rig) error {
			t, err := r.client().ReadTemplate(r.t.Context(), "pve1", 100, "")
			if err == nil && t.mark.State != stateKept {
				err = fmt.Errorf("%w: its mark is %+v", errFaulty, t.mark)
			}
			return err
		}},
		{"a template is deleted", 2, onTemplate(func(ctx context.Context, r *rig, t Template) error { return r.client().DeleteTemplate(ctx, t, nil) }), nothingLeft},
		{"a template retires and goes", 3, onTemplate(func(ctx context.Context, r *rig, t Template) error {
			_, err := r.client().RetireTemplate(ctx, t, 0, nil)
			return err
		}), nothingLeft},
		{"an unfinished template is discarded", 2, func(r *rig) func(context.Context) error {
			r.sim.Inject(pvesim.Fault{Method: http.MethodPost, Path: templateCall, Task: "it breaks"})
			instance := uuid.NewString()
			if _, err := r.client().EnsureTemplate(r.t.Context(), r.spec(), instance, nil, func(Template) {}); err == nil {
				r.t.Fatal("the fault struck nothing")
			}
			return func(ctx context.Context) error { return r.client().DiscardTemplate(ctx, r.spec(), instance, nil) }
		}, nothingLeft},
		{"an account changes its permissions", 15, onAccount(func(ctx context.Context, r *rig, spec AccountSpec, h Holder) error {
			_, err := r.client().EnsureAccount(ctx, articleSpec(spec), h, nil)
			return err
		}), func(r *rig) error {
			spec := articleSpec(accountSpec())
			a, err := r.client().ReadAccount(r.t.Context(), spec)
			if acl, _ := r.client().acl(r.t.Context()); err == nil && (len(a.Faults) > 0 || a.Comment != spec.Comment || len(acl) != 8 || len(r.sim.Summary().Roles) > 0) {
				err = fmt.Errorf("%w: it is %+v with %+v", errFaulty, a, acl)
			}
			return err
		}},
		{"an account is marked as kept", 2, func(r *rig) func(context.Context) error {
			r.account(accountSpec())
			return func(ctx context.Context) error {
				a, err := r.client().ReadAccount(ctx, accountSpec())
				if err != nil {
					return err
				}
				return r.client().KeepAccount(ctx, a)
			}
		}, func(r *rig) error {
			a, err := r.client().ReadAccount(r.t.Context(), accountSpec())
			if err == nil && !a.Kept() {
				err = fmt.Errorf("%w: it is %+v", errFaulty, a)
			}
			return err
		}},
		{"an account is deleted", 8, onAccount(func(ctx context.Context, r *rig, spec AccountSpec, _ Holder) error {
			a, err := r.client().ReadAccount(ctx, spec)
			if kube.IsAbsent(err) {
				return nil // which drops it from the state
			}
			if err == nil {
				_, err = r.client().DeleteAccount(ctx, a, nil)
			}
			return err
		}), nothingLeft},
	}
}

// atEachOf runs a test for each write of each work, to be struck before or after
// it is carried out.
func atEachOf(t *testing.T, test func(t *testing.T, r *rig, w work, run func(context.Context) error, strike func(func()))) {
	t.Helper()
	for _, w := range works() {
		r := newRig(t)
		run := w.begin(r)
		r.faults.strike(0, false, nil)
		if err := errors.Join(run(t.Context()), w.done(r)); err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		writes := r.faults.calls()
		if len(writes) < w.writes {
			t.Fatalf("%s: an undisturbed run writes only %v", w.name, writes)
		}
		for i, call := range writes {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %d %s after=%v", w.name, i+1, call, after), func(t *testing.T) {
					t.Parallel()
					r := newRig(t)
					run := w.begin(r)
					test(t, r, w, run, func(struck func()) { r.faults.strike(i+1, after, struck) })
				})
			}
		}
	}
}

func TestWorkWhoseAnswerGetsLostIsDoneByItself(t *testing.T) {
	atEachOf(t, func(t *testing.T, r *rig, w work, run func(context.Context) error, strike func(func())) {
		strike(nil)
		if err := errors.Join(run(t.Context()), w.done(r)); err != nil {
			t.Error(err)
		}
	})
}

func TestWorkThatIsKilledAtAnyWriteIsDoneByTheNextRun(t *testing.T) {
	atEachOf(t, func(t *testing.T, r *rig, w work, run func(context.Context) error, strike func(func())) {
		ctx, kill := context.WithCancel(t.Context())
		defer kill()
		strike(kill)
		if err := run(ctx); err == nil {
			t.Fatal("the killed run reports success")
		}
		r.faults.strike(0, false, nil)
		if err := errors.Join(run(t.Context()), w.done(r)); err != nil {
			t.Error(err)
		}
	})
}

// Work on what is there ends in an error that says what is wrong, and the next run
// does all of it.
func TestFaultsOfWorkAreExplainedAndTheNextRunIsWhole(t *testing.T) {
	const images = "/nodes/pve1/storage/local/content/local:import/*"
	rows := []struct {
		work string
		pvesim.Fault
		want string
	}{
		{"a template is changed", pvesim.Fault{Method: http.MethodPut, Path: configCall, Times: -1, Status: 500, Message: lockTimeout}, "Something else holds the lock"},
		{"a template is changed", pvesim.Fault{Method: http.MethodPut, Path: configCall, Times: -1, Status: 500, Message: "VM is locked (backup)"}, "qm unlock"},
		{"a template is changed", pvesim.Fault{Method: http.MethodPut, Path: configCall, Status: 403, Message: "Permission check failed (/vms/100, VM.Config.CPU)"}, "pveum acl modify /vms/100"},
		{"a template is changed", pvesim.Fault{Method: http.MethodPut, Path: "/pools/two", Status: 403, Message: "Permission check failed (/pool/two, Pool.Allocate)"}, "changing the pool of template 100"},
		{"a template is changed", pvesim.Fault{Method: http.MethodPut, Path: configCall, Times: -1, Status: 401, Message: "Authentication failed!"}, "expired or disabled"},
		{"a template is changed", pvesim.Fault{Path: configCall, Times: -1, Status: 595, Message: "No route to host"}, "cannot reach the node"},
		{"a template is deleted", pvesim.Fault{Method: http.MethodDelete, Path: "/nodes/pve1/qemu/100", Task: "zfs error: cannot destroy 'tank/base-100-disk-0': dataset is busy"}, "dataset is busy"},
		{"a template is deleted", pvesim.Fault{Method: http.MethodDelete, Path: "/nodes/pve1/qemu/100", Status: 500, Message: "unable to remove VM 100 - used in HA resources and purge parameter not set."}, "used in HA resources"},
		{"a template is deleted", pvesim.Fault{Method: http.MethodDelete, Path: "/nodes/pve1/qemu/100", Task: "base volume 'zfs:base-100-disk-0' is still in use by linked cloned"}, "move them to full clones"},
		{"a template is deleted", pvesim.Fault{Method: http.MethodDelete, Path: "/nodes/pve1/qemu/100", Times: -1, Status: 500, Message: "cluster not ready - no quorum?"}, "pvecm status"},
		{"a template is deleted", pvesim.Fault{Method: http.MethodDelete, Path: images, Task: "can't unlink: Input/output error"}, "deleting the image file local:import/"},
		{"a template is deleted", pvesim.Fault{Path: "/nodes/pve1/storage/local-lvm/content", Times: -1, Status: 596, Message: "Connection timed out"}, "looking for linked clones"},
		{"an unfinished template is discarded", pvesim.Fault{Method: http.MethodDelete, Path: "/nodes/pve1/qemu/100", Status: 403, Message: "Permission check failed (/vms/100, VM.Allocate)"}, "pveum acl modify /vms/100"},
		{"an account changes its permissions", pvesim.Fault{Method: http.MethodPut, Path: "/access/acl", Nth: 6, Times: -1, Status: 500, Message: quorumText}, "The cluster has no quorum"},
		{"an account changes its permissions", pvesim.Fault{Method: http.MethodDelete, Path: "/access/roles/*", Nth: 2, Status: 403, Message: "Permission check failed (/access, Sys.Modify)"}, "pveum acl modify /access"},
		{"an account changes its permissions", pvesim.Fault{Method: http.MethodPut, Path: "/access/users/*/token/*", Status: 500, Message: fullText}, "updating token capi@pve!capi-token"},
		{"an account is deleted", pvesim.Fault{Method: http.MethodDelete, Path: "/access/users/capi@pve", Times: -1, Status: 500, Message: lockText}, "Something else holds the lock"},
		{"an account is deleted", pvesim.Fault{Method: http.MethodDelete, Path: "/access/roles/*", Nth: 3, Status: 403, Message: "Permission check failed (/access, Sys.Modify)"}, "deleting the role"},
		{"an account is deleted", pvesim.Fault{Method: http.MethodDelete, Path: "/access/users/*/token/*", Status: 403, Message: "Permission check failed (/access/groups, User.Modify)"}, "deleting token capi@pve!capi-token"},
	}
	all := works()
	for _, row := range rows {
		t.Run(row.work+": "+row.want, func(t *testing.T) {
			t.Parallel()
			w := all[slices.IndexFunc(all, func(w work) bool { return w.name == row.work })]
			r := newRig(t)
			run := w.begin(r)
			r.sim.Inject(row.Fault)
			err := run(t.Context())
			if r.sim.ClearFaults() == 0 {
				t.Fatal("the fault struck nothing")
			}
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error is %v, want one with %q", err, row.want)
			}
			if err := errors.Join(run(t.Context()), w.done(r)); err != nil {
				t.Error(err)
			}
		})
	}
}

// An account without Datastore.Allocate cannot delete image files: what is left
// is told, and the rest is removed all the same.
func TestAnImageFileThatMayNotBeDeletedHoldsNothingUp(t *testing.T) {
	r := newRig(t)
	c := r.limited("Datastore.Allocate")
	instance := uuid.NewString()
	var told []string
	report := func(_ context.Context, phase, message string) {
		if phase == PhaseImageStays {
			told = append(told, message)
		}
	}
	r.sim.Inject(pvesim.Fault{Method: http.MethodPost, Path: createCall, Task: "it breaks"})
	if _, err := c.EnsureTemplate(t.Context(), r.spec(), instance, report, func(Template) {}); err == nil {
		t.Fatal("the fault struck nothing")
	}
	if err := c.DiscardTemplate(t.Context(), r.spec(), instance, report); err != nil {
		t.Fatal(err)
	}
	if len(told) != 2 || !strings.Contains(told[0], "pvesm free local:import/") || !strings.Contains(told[1], "pvesm free local:import/") {
		t.Errorf("what stays is told as %q", told)
	}
	if left := r.imports(); len(left) != 1 || len(r.names()) != 0 {
		t.Errorf("left are %v and the VMs %v", left, r.names())
	}
}

// Two runs from two states make the same template at once: one cleans up the
// image file that the other is about to make its VM of.
func TestAnImageFileThatAnotherRunRemovesIsBroughtAgain(t *testing.T) {
	r := newRig(t)
	removed := false
	r.faults.answer = func(_ http.ResponseWriter, req *http.Request) bool {
		if req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/qemu") && !removed {
			removed = true
			r.raw(http.MethodDelete, "/nodes/pve1/storage/local/content/"+r.imports()[0], nil)
		}
		return false
	}
	made := r.make(r.spec())
	r.exactlyOne(made, made.Instance)
	if !removed {
		t.Error("nothing was removed")
	}
}

// The image takes nearly all of the storage; a run that finds it there goes on.
func TestAnImageThatIsThereNeedsNoRoom(t *testing.T) {
	r := newRig(t, func(o *pvesim.Options) {
		o.Storages = []pvesim.Storage{
			{ID: "local", Type: "dir", Content: []string{"import"}, Total: int64(len(emptyQcow2(2<<30))) + 1000}, {ID: "local-lvm", Type: "lvmthin", Content: []string{"images"}},
		}
	})
	r.sim.Inject(pvesim.Fault{Method: http.MethodPost, Path: createCall, Task: "it breaks"})
	if _, err := r.client().EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), nil, func(Template) {}); err == nil || len(r.imports()) != 1 {
		t.Fatalf("error is %v, and the image files are %v", err, r.imports())
	}
	made := r.make(r.spec())
	r.exactlyOne(made, made.Instance)
}

// A login that runs out while a template is made ends the run; the next one, with
// a new login, goes on from there.
func TestALoginThatRunsOutInTheMiddleIsExplained(t *testing.T) {
	for _, call := range []string{"/download-url", "/qemu", "/resize", "/template"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			secret, err := r.sim.CreateToken("root@pam", "short", false)
			if err != nil {
				t.Fatal(err)
			}
			r.faults.answer = func(_ http.ResponseWriter, req *http.Request) bool {
				if strings.HasSuffix(req.URL.Path, call) && strings.Contains(req.Header.Get("Authorization"), "!short=") {
					r.raw(http.MethodPut, "/access/users/root@pam/token/short", map[string]any{"expire": 1})
				}
				return false
			}
			c := r.client(func(c *Config) { c.TokenID, c.TokenSecret = "root@pam!short", secret })
			_, err = c.EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), nil, func(Template) {})
			if !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "does not accept the login of root@pam!short") || strings.Contains(err.Error(), secret) {
				t.Fatalf("error is %v", err)
			}
			made := r.make(r.spec())
			r.exactlyOne(made, made.Instance)
		})
	}
}

// The folder for the unpacked image is full; /dev/full stands for its file.
func TestAFullTemporaryFolderIsNamed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /dev/full")
	}
	r := newRig(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close() }()
	r.image = pack(t, r.image, "zst")
	spec := r.spec()
	spec.Image = &testImage{url: r.images.URL + "/image", compression: "zst"}
	b := &build{c: r.client(), spec: spec}
	if _, err := b.fill(t.Context(), full); err == nil || !strings.Contains(err.Error(), os.TempDir()+" is full") || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("error is %v", err)
	}
}
