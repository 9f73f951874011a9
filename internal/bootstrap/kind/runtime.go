// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package kind runs ephemeral clusters in the containers of docker, podman or
// nerdctl, by kind's library. The user's kubeconfig is never touched.
//
// The state folder holds, in kind/, a record of each cluster that was made
// here (NAME.json), the lock of whoever is at it (NAME.lock), and the logs of a
// cluster that did not come up (NAME.logs).
package kind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/kind/pkg/cluster/nodes"
	"sigs.k8s.io/kind/pkg/cluster/nodeutils"
	"sigs.k8s.io/kind/pkg/log"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// ErrForeign says that a kind cluster of the name was not made by this provider.
var ErrForeign = errors.New("a kind cluster of this name is here that was not made by this provider")

// Runtime runs clusters by kind.
type Runtime struct {
	// State is the state folder; empty means the default, see [local.StateDir].
	State string
}

var (
	_ bootstrap.Runtime   = Runtime{}
	_ bootstrap.Discarder = Runtime{}
)

func (r Runtime) folder(name string) (folder, error) {
	state, err := local.StateDir(r.State)
	return folder{dir: filepath.Join(state, "kind"), name: name}, err
}

// Ensure implements [bootstrap.Runtime]. kind cannot be interrupted: when the
// context ends, Ensure returns, and what kind goes on with holds the lock until
// it or this process ends.
func (r Runtime) Ensure(ctx context.Context, c bootstrap.Cluster, report progress.Reporter) ([]byte, error) {
	f, err := r.folder(c.Name)
	if err != nil {
		return nil, err
	}
	unlock, err := f.lock(ctx, func() {
		report.Report(ctx, "joining", fmt.Sprintf("another process is making or deleting the cluster %q: waiting for it", c.Name))
	})
	if err != nil {
		return nil, err
	}
	type outcome struct {
		kubeconfig []byte
		err        error
	}
	ended := make(chan outcome, 1)
	go func() {
		kubeconfig, err := f.ensure(ctx, c, report)
		ended <- outcome{kubeconfig, errors.Join(err, unlock())}
	}()
	select {
	case o := <-ended:
		return o.kubeconfig, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the cluster %q is not up yet: %w", c.Name, context.Cause(ctx))
	}
}

// ensure is Ensure under the lock.
func (f folder) ensure(ctx context.Context, c bootstrap.Cluster, report progress.Reporter) ([]byte, error) {
	known, err := f.read()
	if err != nil {
		return nil, err
	}
	name := c.Kind.Engine
	if known != nil && name == "" {
		name = known.Engine
	}
	report.Report(ctx, "probing-engine", "looking for a container engine that answers")
	e, err := probe(name, logger{ctx, report})
	if err != nil {
		return nil, err
	}
	if known != nil && known.Engine != e.name {
		return nil, fmt.Errorf("the cluster %q was made with %s: delete it before it is made with %s", f.name, known.Engine, e.name)
	}
	found, err := e.nodesOf(f.name)
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		up, err := f.takeUp(ctx, e, found, known, report)
		if err != nil {
			return nil, err
		}
		if !up {
			found = nil
		}
	}
	if len(found) == 0 {
		if err := f.create(ctx, e, c, report); err != nil {
			return nil, err
		}
		if found, err = e.nodesOf(f.name); err != nil {
			return nil, err
		}
	}
	if err := awaitContainerd(ctx, found); err != nil {
		return nil, err
	}
	if err := loadImages(ctx, c.Images, found, report); err != nil {
		return nil, err
	}
	return f.kubeconfig(ctx, e)
}

// awaitContainerd waits until the nodes can be given images, which takes a moment
// after a start.
func awaitContainerd(ctx context.Context, found []nodes.Node) error {
	for _, node := range found {
		err := kube.Wait(ctx, "containerd on node "+node.String(), func(context.Context) (bool, string, error) {
			err := node.Command("crictl", "version").Run()
			return err == nil, "", told(err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// takeUp goes on with the containers that are there. What was never complete is
// deleted: nobody can have put anything into it.
func (f folder) takeUp(ctx context.Context, e *engine, found []nodes.Node, known *record, report progress.Reporter) (up bool, err error) {
	if names := stopped(found); len(names) > 0 {
		report.Report(ctx, "starting", "starting the stopped containers "+strings.Join(names, ", "))
		if err := e.start(names); err != nil {
			return false, err
		}
	}
	configured, initialized, err := look(found)
	if err != nil {
		return false, fmt.Errorf("looking into the nodes of the cluster %q: %w", f.name, told(err))
	}
	ours := strings.Contains(configured, madeHere)
	switch {
	case !ours && (known == nil || configured != ""):
		return false, fmt.Errorf("%w (%s). Choose another name, or delete it with: kind delete cluster --name %s", ErrForeign, e.name, f.name)
	case initialized && (known == nil || known.Complete):
		return true, f.write(record{Engine: e.name, Complete: true})
	case known != nil && known.Complete:
		return false, fmt.Errorf("the cluster %q came up once, and its control plane has lost its files: it is left as it is", f.name)
	}
	report.Report(ctx, "deleting", fmt.Sprintf("deleting what an interrupted run has left of the cluster %q", f.name))
	return false, f.delete(e)
}

// look reads, on the first node of the control plane, what kind configured and
// whether kubeadm got as far as an administrator's kubeconfig.
func look(found []nodes.Node) (configured string, initialized bool, err error) {
	planes, err := nodeutils.ControlPlaneNodes(found)
	if err != nil || len(planes) == 0 {
		return "", false, err
	}
	const mark = "=== initialized"
	var out strings.Builder
	err = planes[0].Command("sh", "-c", "cat /kind/kubeadm.conf 2>/dev/null; test ! -s /etc/kubernetes/admin.conf || echo '"+mark+"'").SetStdout(&out).Run()
	configured, _, initialized = strings.Cut(out.String(), mark)
	return configured, initialized, err
}

// create makes the cluster. One that does not come up is deleted, and its logs
// are kept in a folder that the error names.
func (f folder) create(ctx context.Context, e *engine, c bootstrap.Cluster, report progress.Reporter) error {
	config, err := configOf(c)
	if err != nil {
		return err
	}
	if err := f.write(record{Engine: e.name}); err != nil {
		return err
	}
	report.Report(ctx, "creating", fmt.Sprintf("making the cluster %q with kind and %s", f.name, e.name))
	// kind writes a kubeconfig in any case.
	scratch, err := os.MkdirTemp(f.dir, f.name+".")
	if err != nil {
		return fmt.Errorf("making a folder for kind: %w", err)
	}
	err = e.Create(f.name, cluster.CreateWithV1Alpha4Config(config), cluster.CreateWithRetain(true), cluster.CreateWithKubeconfigPath(filepath.Join(scratch, "kubeconfig")))
	if cleanup := os.RemoveAll(scratch); err == nil && cleanup != nil {
		return fmt.Errorf("removing kind's kubeconfig: %w", cleanup)
	}
	if err == nil {
		return f.write(record{Engine: e.name, Complete: true})
	}
	err = fmt.Errorf("making the cluster %q with %s: %w", f.name, e.name, told(err))
	logs := f.path(".logs")
	if kept := errors.Join(os.RemoveAll(logs), e.CollectLogs(f.name, logs)); kept == nil {
		err = fmt.Errorf("%w\nThe logs of its nodes are in %s", err, logs)
	}
	return errors.Join(err, f.delete(e))
}

// delete removes the containers, and the record once they are gone.
func (f folder) delete(e *engine) error {
	// kind takes the cluster out of a kubeconfig, of which there is none.
	scratch, err := os.MkdirTemp(f.dir, f.name+".")
	if err != nil {
		return fmt.Errorf("making a folder for kind: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	if err := e.Delete(f.name, filepath.Join(scratch, "kubeconfig")); err != nil {
		return fmt.Errorf("deleting the nodes of the cluster %q: %w", f.name, told(err))
	}
	return f.forget()
}

// kubeconfig waits until the API server answers.
func (f folder) kubeconfig(ctx context.Context, e *engine) ([]byte, error) {
	kubeconfig, err := e.kubeconfigOf(f.name)
	if err != nil {
		return nil, err
	}
	config, err := kube.ConfigFromKubeconfig(kubeconfig, "")
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	err = kube.Wait(ctx, fmt.Sprintf("the API server of the cluster %q", f.name), func(ctx context.Context) (bool, string, error) {
		_, err := client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil, "", err
	})
	return kubeconfig, err
}

// here answers the engine and the nodes of a cluster; no nodes where it is not
// here. Without a record the first engine that answers is asked, which is the one
// that would be made use of.
func (r Runtime) here(name string) (folder, *engine, []nodes.Node, error) {
	f, err := r.folder(name)
	if err != nil {
		return f, nil, nil, err
	}
	known, err := f.read()
	if err != nil {
		return f, nil, nil, err
	}
	wanted := ""
	if known != nil {
		wanted = known.Engine
	}
	e, err := probe(wanted, log.NoopLogger{})
	if errors.Is(err, errNoEngine) {
		return f, nil, nil, nil
	}
	if err != nil {
		return f, nil, nil, err
	}
	found, err := e.nodesOf(name)
	return f, e, found, err
}

// Status implements [bootstrap.Runtime].
func (r Runtime) Status(_ context.Context, name string) (bootstrap.Status, error) {
	_, _, found, err := r.here(name)
	switch {
	case err != nil:
		return "", err
	case len(found) == 0:
		return bootstrap.NotHere, nil
	case len(stopped(found)) > 0:
		return bootstrap.Stopped, nil
	}
	return bootstrap.Running, nil
}

// Kubeconfig implements [bootstrap.Runtime].
func (r Runtime) Kubeconfig(_ context.Context, name string) ([]byte, error) {
	_, e, found, err := r.here(name)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the kind cluster %q is not on this machine: %w", name, kube.ErrAbsent)
	}
	return e.kubeconfigOf(name)
}

// Delete implements [bootstrap.Runtime].
func (r Runtime) Delete(ctx context.Context, name string) error {
	return r.locked(ctx, name, func(_ folder, remove func() error) error { return remove() })
}

// Discard implements [bootstrap.Discarder]. What the record says never came up
// holds nothing.
func (r Runtime) Discard(ctx context.Context, name string) (gone bool, err error) {
	err = r.locked(ctx, name, func(f folder, remove func() error) error {
		known, err := f.read()
		if err != nil || known == nil || known.Complete {
			return err
		}
		gone = true
		return remove()
	})
	return gone && err == nil, err
}

// locked calls do under the cluster's lock, with what deletes the cluster.
func (r Runtime) locked(ctx context.Context, name string, do func(f folder, remove func() error) error) error {
	f, err := r.folder(name)
	if err != nil {
		return err
	}
	unlock, err := f.lock(ctx, func() {})
	if err != nil {
		return err
	}
	_, e, found, err := r.here(name)
	if err == nil {
		err = do(f, func() error {
			if len(found) == 0 {
				return f.forget()
			}
			return f.delete(e)
		})
	}
	return errors.Join(err, unlock())
}
