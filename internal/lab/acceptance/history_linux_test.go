// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package acceptance

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/audit"
)

// auditLogs keeps the audit logs of both API servers: that of the bootstrap
// cluster would go with it.
type auditLogs struct {
	dir  string
	mu   sync.Mutex
	kept map[string]string // side: file
}

// keep links each audit log as soon as it is there, until stop is closed.
func (a *auditLogs) keep(roots map[string]string, stop <-chan struct{}) {
	for {
		for side, root := range roots {
			a.mu.Lock()
			_, have := a.kept[side]
			a.mu.Unlock()
			if !have {
				a.find(side, root)
			}
		}
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (a *auditLogs) find(side, root string) {
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // folders come and go
		}
		if entry.IsDir() && (entry.Name() == "pods" || entry.Name() == "roots" || entry.Name() == "rootfs") {
			return fs.SkipDir
		}
		if name := entry.Name(); name != "audit.log" && (name != "kube-apiserver.log" || !strings.Contains(path, "audit")) {
			return nil
		}
		target := filepath.Join(a.dir, side+"-audit.log")
		if os.Link(path, target) == nil {
			a.mu.Lock()
			a.kept[side] = target
			a.mu.Unlock()
			return fs.SkipAll
		}
		return nil
	})
}

func (a *auditLogs) read(t *testing.T) []audit.Event {
	t.Helper()
	var events []audit.Event
	a.mu.Lock()
	defer a.mu.Unlock()
	for side, path := range a.kept {
		read, err := audit.Read(side, path, "clusters", "nodes")
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, read...)
	}
	slices.SortStableFunc(events, func(a, b audit.Event) int { return a.Done.Compare(b.Done) })
	return events
}

// checkSingleWriter replays every write to the Cluster on both sides: at no
// moment did both hold an un-paused copy.
func checkSingleWriter(t *testing.T, events []audit.Event) {
	t.Helper()
	told, err := audit.Replay(events)
	if err != nil {
		t.Fatal(err)
	}
	for _, both := range told.Both {
		t.Error(both)
	}
	if last := told.Last["kmgt/kmgt"]; told.Writes < 4 || !slices.Equal(last, []string{"management"}) {
		t.Errorf("%d writes were seen, and in the end the managers are %v: the audit logs do not tell the whole story", told.Writes, last)
	}
}

// checkNodeOrder looks that the node was not ready first, then got its provider
// id, then became ready.
func checkNodeOrder(t *testing.T, events []audit.Event) {
	t.Helper()
	var story []string
	note := func(what string) {
		if !slices.Contains(story, what) {
			story = append(story, what)
		}
	}
	for _, e := range events {
		if e.Side != "management" || e.ObjectRef.Resource != "nodes" || len(e.ResponseObject) == 0 {
			continue
		}
		var node struct {
			Spec struct {
				ProviderID string
				Taints     []struct{ Key string }
			}
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
		if json.Unmarshal(e.ResponseObject, &node) != nil {
			continue
		}
		ready := slices.ContainsFunc(node.Status.Conditions, func(c struct{ Type, Status string }) bool { return c.Type == "Ready" && c.Status == "True" })
		uninitialized := slices.ContainsFunc(node.Spec.Taints, func(t struct{ Key string }) bool { return t.Key == "node.cloudprovider.kubernetes.io/uninitialized" })
		switch {
		case !ready && uninitialized && node.Spec.ProviderID == "":
			note("registered, uninitialized and not ready")
		case ready && !uninitialized && node.Spec.ProviderID != "":
			note("ready and initialized")
		}
	}
	want := []string{"registered, uninitialized and not ready", "ready and initialized"}
	if !slices.Equal(story, want) {
		t.Errorf("the node's story is %q, want %q", story, want)
	}
}
