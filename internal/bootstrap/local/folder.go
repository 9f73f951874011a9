// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package local runs ephemeral clusters without a container engine and without
// root: the control plane's programs and the pods are processes of this machine.
//
// Each cluster has a supervisor, a detached process of this very program that
// outlives the one that started it. The cluster's processes die with their
// supervisor; its data stay, and the next start continues from them. Whoever
// knows the cluster's name can use, stop or delete it.
//
// The state folder holds
//
//	images/                   unpacked images, shared by all clusters
//	clusters/NAME/            one cluster, mode 0700
//	  start.lock              held by whoever starts, stops or deletes it
//	  run.lock                held by the supervisor while it lives
//	  cluster.json            what was asked for
//	  status.json             what the supervisor says of itself
//	  kubeconfig              the administrator's, while the cluster runs
//	  port                    the API server's of the last run
//	  supervisor.log          the supervisor's output
//	  control-plane/          see package controlplane
//	  node/                   see package node
package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/gofrs/flock"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
)

// StateEnv names the environment variable with the state folder.
const StateEnv = "CAPI_STATE_DIR"

// StateDir answers the state folder: given, else that of [StateEnv], else
// terraform-provider-capi in the user's state folder ($XDG_STATE_HOME, else
// ~/.local/state).
func StateDir(given string) (string, error) {
	if given == "" {
		given = os.Getenv(StateEnv)
	}
	if given != "" {
		return filepath.Abs(given)
	}
	base := os.Getenv("XDG_STATE_HOME")
	if base == "" || !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("finding a folder for local clusters (set %s to choose one): %w", StateEnv, err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "terraform-provider-capi"), nil
}

// folder is a cluster's folder.
type folder struct{ state, name string }

// validName is a DNS label: the name becomes part of the node's name.
var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$`)

func newFolder(state, name string) (folder, error) {
	if !validName.MatchString(name) {
		return folder{}, fmt.Errorf("the cluster's name %q must be of a-z, 0-9 and -, and have at most 52 characters", name)
	}
	return folder{state: state, name: name}, nil
}

func (f folder) path(elem ...string) string {
	return filepath.Join(append([]string{f.state, "clusters", f.name}, elem...)...)
}

// exists says whether the cluster is on this machine.
func (f folder) exists() (bool, error) {
	_, err := os.Stat(f.path("cluster.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for the cluster: %w", err)
	}
	return true, nil
}

// portFile holds the API server's port of the last run. It is written once the
// control plane has come up.
const portFile = "port"

// ran says whether the cluster has ever come up. Before that nobody was given its
// kubeconfig, whatever of etcd's data is there.
func (f folder) ran() (bool, error) {
	_, err := os.Stat(f.path(portFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for the data of cluster %q: %w", f.name, err)
	}
	return true, nil
}

// clearHalfMade removes the data of a first start that failed: etcd does not
// go on from a log that it could not write to its end, on a full disk for example.
func (f folder) clearHalfMade() error {
	ran, err := f.ran()
	if err != nil || ran {
		return err
	}
	if err := os.RemoveAll(f.path("control-plane", "etcd")); err != nil {
		return fmt.Errorf("removing what a first start of cluster %q has left: %w", f.name, err)
	}
	return nil
}

// lockInterval is how often a lock that somebody holds is tried again.
const lockInterval = 100 * time.Millisecond

// lock takes the lock of starting, stopping and deleting, and waits for it;
// waiting is called once when somebody else holds it. The folder is made.
func (f folder) lock(ctx context.Context, waiting func()) (unlock func() error, err error) {
	for {
		if err := os.MkdirAll(f.path(), 0o700); err != nil {
			return nil, fmt.Errorf("making the cluster's folder: %w", err)
		}
		l := flock.New(f.path("start.lock"), flock.SetPermissions(0o600))
		taken, err := l.TryLock()
		if err == nil && !taken {
			waiting()
			waiting = func() {}
			_, err = l.TryLockContext(ctx, lockInterval)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // the folder was deleted in between
		}
		if err != nil {
			return nil, fmt.Errorf("taking the lock of cluster %q: %w", f.name, errors.Join(err, l.Close()))
		}
		// Its last holder may have deleted the folder, and with it the file that
		// we have locked now.
		if same, err := isAt(l, f.path("start.lock")); err != nil {
			return nil, errors.Join(err, l.Unlock())
		} else if same {
			return l.Unlock, nil
		}
		if err := l.Unlock(); err != nil {
			return nil, fmt.Errorf("freeing a stale lock: %w", err)
		}
	}
}

func isAt(l *flock.Flock, path string) (bool, error) {
	have, err := l.Stat()
	if err != nil {
		return false, fmt.Errorf("looking at the lock: %w", err)
	}
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking at the lock: %w", err)
	}
	return os.SameFile(have, now), nil
}

// alive says whether the cluster's supervisor lives: it holds its lock.
func (f folder) alive() (bool, error) {
	l := flock.New(f.path("run.lock"), flock.SetPermissions(0o600))
	taken, err := l.TryRLock() // shared, so that two that ask do not take each other for it
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for the supervisor of cluster %q: %w", f.name, errors.Join(err, l.Close()))
	}
	if !taken {
		return true, l.Close()
	}
	return false, l.Unlock()
}

// status is what a supervisor says of itself in status.json.
type status struct {
	PID int `json:"pid"`
	// Phase and Message are the last step of the start.
	Phase   string `json:"phase"`
	Message string `json:"message"`
	// Ready says that the cluster runs.
	Ready bool `json:"ready"`
	// Error is why it does not.
	Error string `json:"error,omitempty"`
}

func (f folder) readStatus() (status, error) {
	var s status
	err := readJSON(f.path("status.json"), &s)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	return s, err
}

func (f folder) readCluster() (bootstrap.Cluster, error) {
	var c bootstrap.Cluster
	return c, readJSON(f.path("cluster.json"), &c)
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading a cluster's data: %w", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return writeFile(path, append(data, '\n'))
}

// writeFile writes a file of mode 0600 whole or not at all.
func writeFile(path string, data []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(path), ".tmp-")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = temp.Write(data)
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, errors.Join(err, os.Remove(temp.Name())))
	}
	return nil
}
