// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/preflight"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// Runtime runs clusters whose data lie in a state folder.
type Runtime struct {
	// State is the state folder; empty means the default, see [StateDir].
	State string
}

var (
	_ bootstrap.Runtime   = Runtime{}
	_ bootstrap.Discarder = Runtime{}
)

// Supported says whether the runtime runs on a platform, in the words of GOOS
// and GOARCH: pods need Linux' namespaces, and images are published for two kinds
// of machines.
func Supported(goos, goarch string) bool {
	return goos == "linux" && (goarch == "amd64" || goarch == "arm64")
}

func (r Runtime) folder(name string) (folder, error) {
	state, err := StateDir(r.State)
	if err != nil {
		return folder{}, err
	}
	return newFolder(state, name)
}

// Ensure implements [bootstrap.Runtime]. A cluster that runs with another
// Kubernetes version or other sources of images is started again from its data.
func (r Runtime) Ensure(ctx context.Context, cluster bootstrap.Cluster, report progress.Reporter) ([]byte, error) {
	f, err := r.folder(cluster.Name)
	if err != nil {
		return nil, err
	}
	unlock, err := f.lock(ctx, func() {
		report.Report(ctx, "joining", fmt.Sprintf("another process is starting or stopping the cluster %q: waiting for it", cluster.Name))
	})
	if err != nil {
		return nil, err
	}
	kubeconfig, err := f.ensure(ctx, cluster, report)
	return kubeconfig, errors.Join(err, unlock())
}

// ensure is Ensure under the lock.
func (f folder) ensure(ctx context.Context, cluster bootstrap.Cluster, report progress.Reporter) ([]byte, error) {
	alive, err := f.alive()
	if err != nil {
		return nil, err
	}
	if alive {
		running, err := f.readCluster()
		if err != nil {
			return nil, err
		}
		if running.KubernetesVersion != cluster.KubernetesVersion || !slices.Equal(running.Images, cluster.Images) {
			report.Report(ctx, "restarting", fmt.Sprintf("starting the cluster %q again with its new configuration", f.name))
			if err := f.stop(ctx); err != nil {
				return nil, err
			}
			alive = false
		}
	}
	if alive {
		kubeconfig, err := f.awaitReady(ctx, report)
		// A supervisor that was killed holds its lock until the system has closed
		// its files.
		if err == nil || f.awaitEnd(ctx, lastBreath) != nil {
			return kubeconfig, err
		}
	}
	if err := checkMachine(ctx, report); err != nil {
		return nil, err
	}
	report.Report(ctx, "starting", fmt.Sprintf("starting the cluster %q as processes of this machine; its data lie in %s", f.name, f.path()))
	if err := f.clearHalfMade(); err != nil {
		return nil, err
	}
	if err := writeJSON(f.path("cluster.json"), cluster); err != nil {
		return nil, err
	}
	if err := f.spawn(); err != nil {
		return nil, err
	}
	return f.awaitReady(ctx, report)
}

// lastBreath is how long a process that was killed may take to be gone.
const lastBreath = 3 * time.Second

// checkMachine says what is in the way before anything is made.
func checkMachine(ctx context.Context, report progress.Reporter) error {
	found := preflight.Check(ctx)
	for _, warning := range found.Warnings() {
		report.Report(ctx, "checking", "this may fail later: "+warning)
	}
	return found.Err()
}

// spawn starts the supervisor, which outlives this process.
func (f folder) spawn() error {
	if err := os.Remove(f.path("status.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the last supervisor's status: %w", err)
	}
	log, err := os.OpenFile(f.path("supervisor.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("opening the supervisor's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(selfExe) //nolint:gosec // this very program
	cmd.Args = []string{supervisorName, f.state, f.name}
	cmd.Dir, cmd.Env, cmd.SysProcAttr = f.path(), supervisorEnvironment(), detached()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the supervisor of cluster %q: %w", f.name, err)
	}
	go func() { _ = cmd.Wait() }() // collects it, should it end before this process
	return nil
}

// supervisorEnvironment is what a supervisor inherits: it needs what finds
// registries and their credentials, and lives long, so it gets none of the
// secrets that a run of Terraform may have in its environment.
func supervisorEnvironment() []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		switch strings.ToUpper(name) {
		case "HOME", "PATH", "USER", "LANG", "TMPDIR", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR",
			"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "GODEBUG", "GOCOVERDIR", "GOTRACEBACK":
			env = append(env, entry)
		default:
			if strings.HasPrefix(name, "XDG_") {
				env = append(env, entry)
			}
		}
	}
	return env
}

// readyTimeout bounds a start whose context has no end of its own; images may
// have to be fetched.
const readyTimeout = 15 * time.Minute

// pollInterval is how often the supervisor's word is read.
const pollInterval = 100 * time.Millisecond

// awaitReady follows a start until the cluster runs and its API server answers.
func (f folder) awaitReady(ctx context.Context, report progress.Reporter) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var last status
	born := time.Now()
	for {
		now, err := f.readStatus()
		if err != nil {
			return nil, err
		}
		// The end of a start that failed is no step of it.
		if now.Phase != last.Phase && now.Phase != "" && now.Phase != phaseStopping && now.Phase != phaseStopped {
			report.Report(ctx, now.Phase, now.Message)
		}
		last = now
		if now.Ready {
			return f.answering(ctx)
		}
		alive, err := f.alive()
		if err != nil {
			return nil, err
		}
		// A supervisor that was just started has not taken its lock yet.
		if !alive && (now.Error != "" || time.Since(born) > 10*time.Second) {
			return nil, f.notStarted(now)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the cluster %q (last step: %s): %w", f.name, last.Message, context.Cause(ctx))
		}
	}
}

func (f folder) notStarted(s status) error {
	if s.Error != "" {
		return fmt.Errorf("the cluster %q did not start: %s", f.name, s.Error)
	}
	// It has no other place for its words than this folder.
	if err := writeFile(f.path("written"), []byte("to see whether that can be\n")); err != nil {
		return fmt.Errorf("the supervisor of cluster %q ended, and its folder takes nothing: %w", f.name, err)
	}
	if err := os.Remove(f.path("written")); err != nil {
		return fmt.Errorf("removing a file of trial: %w", err)
	}
	return fmt.Errorf("the supervisor of cluster %q ended without a word; the end of its log %s:\n%s", f.name, f.path("supervisor.log"), f.logTail())
}

// logTail answers the end of the supervisor's log.
func (f folder) logTail() string {
	file, err := os.Open(f.path("supervisor.log"))
	if err != nil {
		return "(" + err.Error() + ")"
	}
	defer file.Close()
	const most = 2 << 10
	if info, err := file.Stat(); err == nil && info.Size() > most {
		if _, err := file.Seek(-most, io.SeekEnd); err != nil {
			return "(" + err.Error() + ")"
		}
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return strings.TrimSpace(string(data))
}

// answering answers the kubeconfig once the API server answers.
func (f folder) answering(ctx context.Context) ([]byte, error) {
	kubeconfig, err := os.ReadFile(f.path("kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of cluster %q: %w", f.name, err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of cluster %q: %w", f.name, err)
	}
	config.Timeout = 10 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of cluster %q: %w", f.name, err)
	}
	if _, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return nil, fmt.Errorf("the cluster %q runs, but its API server does not answer: %w", f.name, err)
	}
	return kubeconfig, nil
}

// Status implements [bootstrap.Runtime]. A cluster that is starting or that lost
// one of its programs is stopped.
func (r Runtime) Status(_ context.Context, name string) (bootstrap.Status, error) {
	f, err := r.folder(name)
	if err != nil {
		return "", err
	}
	here, err := f.exists()
	if err != nil {
		return "", err
	}
	if !here {
		return bootstrap.NotHere, nil
	}
	alive, err := f.alive()
	if err != nil {
		return "", err
	}
	s, err := f.readStatus()
	if err != nil {
		return "", err
	}
	if alive && s.Ready {
		return bootstrap.Running, nil
	}
	return bootstrap.Stopped, nil
}

// Kubeconfig implements [bootstrap.Runtime].
func (r Runtime) Kubeconfig(ctx context.Context, name string) ([]byte, error) {
	f, err := r.folder(name)
	if err != nil {
		return nil, err
	}
	switch status, err := r.Status(ctx, name); {
	case err != nil:
		return nil, err
	case status == bootstrap.NotHere:
		return nil, fmt.Errorf("the cluster %q on this machine (%s): %w", name, f.path(), kube.ErrAbsent)
	case status == bootstrap.Stopped:
		return nil, fmt.Errorf("the cluster %q is stopped; its data lie in %s", name, f.path())
	}
	kubeconfig, err := os.ReadFile(f.path("kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of cluster %q: %w", name, err)
	}
	return kubeconfig, nil
}

// Stop ends the cluster's processes and keeps its data. That it does not run is
// no error.
func (r Runtime) Stop(ctx context.Context, name string) error {
	return r.locked(ctx, name, func(f folder) error { return f.stop(ctx) })
}

// Delete implements [bootstrap.Runtime].
func (r Runtime) Delete(ctx context.Context, name string) error {
	return r.locked(ctx, name, func(f folder) error { return f.remove(ctx) })
}

// Discard implements [bootstrap.Discarder]. One whose start is under way is left
// to it.
func (r Runtime) Discard(ctx context.Context, name string) (gone bool, err error) {
	err = r.locked(ctx, name, func(f folder) error {
		if alive, err := f.alive(); err != nil || alive {
			return err
		}
		switch ran, err := f.ran(); {
		case err != nil:
			return err
		case ran:
			return nil
		}
		gone = true
		return f.remove(ctx)
	})
	return gone && err == nil, err
}

// remove deletes the cluster under the lock.
func (f folder) remove(ctx context.Context) error {
	if err := f.stop(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(f.path()); err != nil {
		return fmt.Errorf("removing the data of cluster %q: %w", f.name, err)
	}
	return nil
}

// locked calls do under the cluster's lock, unless the cluster is not here.
func (r Runtime) locked(ctx context.Context, name string, do func(folder) error) error {
	f, err := r.folder(name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(f.path()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	unlock, err := f.lock(ctx, func() {})
	if err != nil {
		return err
	}
	return errors.Join(do(f), unlock())
}

// stopTimeout is how long a supervisor may take to end its cluster before it is
// killed, and its cluster with it.
const stopTimeout = 90 * time.Second

// stop ends the supervisor under the lock.
func (f folder) stop(ctx context.Context) error {
	s, err := f.readStatus()
	if err != nil {
		return err
	}
	alive, err := f.alive()
	if err != nil || !alive {
		return err
	}
	// The process is found before its life is proven, so that the signal reaches
	// it or nobody: on Linux a process handle stays with its process.
	process, err := os.FindProcess(s.PID)
	if err != nil {
		return fmt.Errorf("finding the supervisor of cluster %q: %w", f.name, err)
	}
	defer func() { _ = process.Release() }()
	if alive, err = f.alive(); err != nil || !alive {
		return err
	}
	if s.PID <= 1 {
		return fmt.Errorf("the supervisor of cluster %q has not told its process id yet", f.name)
	}
	if err := process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping the supervisor of cluster %q: %w", f.name, err)
	}
	if err := f.awaitEnd(ctx, stopTimeout); !errors.Is(err, errStillAlive) {
		return err
	}
	if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing the supervisor of cluster %q: %w", f.name, err)
	}
	return f.awaitEnd(ctx, stopTimeout)
}

var errStillAlive = errors.New("the supervisor does not end")

func (f folder) awaitEnd(ctx context.Context, patience time.Duration) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		alive, err := f.alive()
		if err != nil || !alive {
			return err
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			return fmt.Errorf("cluster %q: %w", f.name, errStillAlive)
		case <-ctx.Done():
			return fmt.Errorf("waiting for the end of cluster %q: %w", f.name, context.Cause(ctx))
		}
	}
}
