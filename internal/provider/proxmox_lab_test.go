// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	pve "github.com/luthermonson/go-proxmox"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/factory"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// proxmoxLab is a simulated Proxmox VE and Image Factory for a test through the
// real CLI.
type proxmoxLab struct {
	t       *testing.T
	sim     *pvesim.Simulator
	factory *factory.Factory
	secret  string

	mu     sync.Mutex
	writes int
	at     int
	struck func()
	// refuse, when it answers a text, has the call refused with it.
	refuse func(*http.Request) string
}

func newProxmoxLab(t *testing.T, change ...func(*pvesim.Options)) *proxmoxLab {
	t.Helper()
	lab := &proxmoxLab{t: t}
	options := pvesim.Options{Middleware: lab.middleware}
	for _, c := range change {
		c(&options)
	}
	var err error
	if lab.sim, err = pvesim.Start(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lab.sim.Close() })
	if lab.factory, err = factory.Start(t.Context(), factory.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lab.factory.Close() })
	if lab.secret, err = lab.sim.CreateToken("root@pam", "terraform", false); err != nil {
		t.Fatal(err)
	}
	return lab
}

// middleware counts the writing calls. The one that a test has chosen is carried
// out, struck is called, and the answer is lost.
func (lab *proxmoxLab) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lab.mu.Lock()
		hit := false
		if r.Method != http.MethodGet {
			lab.writes++
			hit = lab.writes == lab.at
		}
		struck, refuse := lab.struck, lab.refuse
		lab.mu.Unlock()
		if refuse != nil {
			if text := refuse(r); text != "" {
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = fmt.Fprintf(w, `{"data":null,"message":%q}`, text+"\n")
				return
			}
		}
		if !hit {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(httptest.NewRecorder(), r)
		struck()
		panic(http.ErrAbortHandler)
	})
}

// strike chooses a writing call, from 1; zero for none. It answers how many
// there were since the last time.
func (lab *proxmoxLab) strike(at int, struck func()) int {
	lab.mu.Lock()
	defer lab.mu.Unlock()
	writes := lab.writes
	lab.writes, lab.at, lab.struck = 0, at, struck
	return writes
}

// refuseCalls has calls whose path ends in suffix refused until allowCalls.
func (lab *proxmoxLab) refuseCalls(suffix string) {
	lab.mu.Lock()
	defer lab.mu.Unlock()
	lab.refuse = func(r *http.Request) string {
		if r.Method != http.MethodGet && strings.HasSuffix(r.URL.Path, suffix) {
			return "the disk is on fire"
		}
		return ""
	}
}

func (lab *proxmoxLab) allowCalls() {
	lab.mu.Lock()
	defer lab.mu.Unlock()
	lab.refuse = nil
}

// provider is the provider block. A token's secret can be replaced, and so can
// the endpoint.
func (lab *proxmoxLab) provider(change ...string) string {
	endpoint, secret := lab.sim.URL(), lab.secret
	for i := 0; i+1 < len(change); i += 2 {
		switch change[i] {
		case "endpoint":
			endpoint = change[i+1]
		case "secret":
			secret = change[i+1]
		}
	}
	return fmt.Sprintf(`
provider "capi" {
  proxmox = {
    endpoint     = %q
    token_id     = "root@pam!terraform"
    token_secret = %q
    ca_pem       = <<-EOT
%s
    EOT
  }
}
`, endpoint, secret, strings.TrimSpace(string(lab.sim.CA())))
}

// template is the resource with further arguments.
func (lab *proxmoxLab) template(version string, arguments ...string) string {
	return fmt.Sprintf(`
resource "capi_proxmox_template" "talos" {
  node_name = "pve1"
  storage   = "local-lvm"
  talos = {
    version     = %q
    extensions  = ["siderolabs/qemu-guest-agent"]
    factory_url = %q
  }
  %s
}
`, version, lab.factory.URL(), strings.Join(arguments, "\n  "))
}

// raw performs a call as root and waits for its task.
func (lab *proxmoxLab) raw(method, path string, body map[string]any) {
	lab.t.Helper()
	client := pve.NewClient(lab.sim.APIURL(), pve.WithAPIToken("root@pam!terraform", lab.secret), pve.WithInsecureSkipVerify())
	var raw any
	ctx := context.Background()
	if err := client.Req(ctx, method, path, jsonBody(lab.t, body), &raw); err != nil {
		lab.t.Fatalf("%s %s: %v", method, path, err)
	}
	if upid, ok := raw.(string); ok && strings.HasPrefix(upid, "UPID:") {
		if err := pve.NewTask(pve.UPID(upid), client).Wait(ctx, 10*time.Millisecond, 10*time.Second); err != nil {
			lab.t.Fatalf("%s %s: %v", method, path, err)
		}
	}
}

// empty fails unless nothing but the administrator is left.
func (lab *proxmoxLab) empty() error {
	s := lab.sim.Summary()
	if len(s.VMs)+len(s.Files)+len(s.Users)+len(s.Roles) > 0 || len(s.Tokens) != 1 {
		return fmt.Errorf("the destroy left %+v", s)
	}
	return nil
}

// workspace is a folder in which the real CLI runs with this test's binary as
// the provider, as a process of its own that can be killed.
type workspace struct {
	t    *testing.T
	dir  string
	cli  string
	pids string
}

func newWorkspace(t *testing.T, configuration string) *workspace {
	t.Helper()
	w := &workspace{t: t, dir: t.TempDir(), cli: cliPath(t)}
	w.pids = filepath.Join(w.dir, "pid")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	plugins := filepath.Join(w.dir, "plugins")
	if err := errors.Join(
		os.Mkdir(plugins, 0o700),
		os.Symlink(self, filepath.Join(plugins, "terraform-provider-capi")),
		os.WriteFile(filepath.Join(w.dir, "cli.tfrc"), fmt.Appendf(nil, "provider_installation {\n  dev_overrides {\n    %q = %q\n  }\n}\n", Address, plugins), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	w.configure(configuration)
	return w
}

// configure replaces the configuration.
func (w *workspace) configure(configuration string) {
	w.t.Helper()
	text := fmt.Appendf(nil, "terraform {\n  required_providers {\n    capi = { source = %q }\n  }\n}\n%s", Address, configuration)
	if err := os.WriteFile(filepath.Join(w.dir, "main.tf"), text, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// run runs the CLI and answers what it printed.
func (w *workspace) run(arguments ...string) (string, error) {
	w.t.Helper()
	command := exec.CommandContext(w.t.Context(), w.cli, arguments...)
	command.Dir = w.dir
	command.Env = w.environment()
	out, err := command.CombinedOutput()
	return string(out), err
}

func (w *workspace) environment() []string {
	return append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(w.dir, "cli.tfrc"), serveVariable+"="+w.pids, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1")
}

// must is run for what has to succeed.
func (w *workspace) must(arguments ...string) string {
	w.t.Helper()
	out, err := w.run(arguments...)
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
	return out
}

// kill kills the provider as kill -9 does, and waits until it is gone.
func (w *workspace) kill() {
	text, err := os.ReadFile(w.pids)
	if err != nil {
		w.t.Error(err)
		return
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		w.t.Error(err)
		return
	}
	if process, err := os.FindProcess(pid); err == nil {
		_ = process.Kill() // SIGKILL
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		// A killed child that its parent has not waited for yet is a zombie.
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(status), ") Z ") {
			return
		}
	}
	w.t.Errorf("the provider %d did not die", pid)
}

// killedAtEachWrite applies a configuration once undisturbed, and then once per
// writing call, with the provider killed right after it was carried out; each
// time the next apply must converge and check must hold.
func killedAtEachWrite(t *testing.T, configuration func(*proxmoxLab) string, check func(*testing.T, *proxmoxLab)) {
	lab := newProxmoxLab(t)
	w := newWorkspace(t, configuration(lab))
	lab.strike(0, nil)
	w.must("apply", "-auto-approve", "-input=false")
	writes := lab.strike(0, nil)
	if writes < 4 {
		t.Fatalf("an undisturbed apply writes only %d times", writes)
	}
	for i := 1; i <= writes; i++ {
		t.Run(fmt.Sprintf("write %d", i), func(t *testing.T) {
			lab := newProxmoxLab(t)
			w := newWorkspace(t, configuration(lab))
			lab.strike(i, w.kill)
			if out, err := w.run("apply", "-auto-approve", "-input=false"); err == nil {
				t.Fatalf("the apply whose provider was killed succeeds:\n%s", out)
			}
			lab.strike(0, nil)
			w.must("apply", "-auto-approve", "-input=false")
			check(t, lab)
			if out, err := w.run("plan", "-detailed-exitcode", "-input=false"); err != nil {
				t.Errorf("the plan after it is not empty: %v\n%s", err, out)
			}
			w.must("destroy", "-auto-approve", "-input=false")
			if err := lab.empty(); err != nil {
				t.Error(err)
			}
		})
	}
}

func newUUID() string { return uuid.NewString() }
