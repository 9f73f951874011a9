// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package acceptance

import (
	"bufio"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
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

// event is the part of an audit event that tells who managed a Cluster when.
type event struct {
	Stage     string `json:"stage"`
	Verb      string `json:"verb"`
	ObjectRef struct {
		Resource, Namespace, Name, Subresource, APIGroup string
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestObject  json.RawMessage `json:"requestObject"`
	ResponseObject json.RawMessage `json:"responseObject"`
	StageTimestamp time.Time       `json:"stageTimestamp"`
	side           string
}

func (a *auditLogs) read(t *testing.T) []event {
	t.Helper()
	var events []event
	for side, path := range a.kept {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		scanner := bufio.NewScanner(file)
		scanner.Buffer(nil, 64<<20)
		for scanner.Scan() {
			var e event
			if json.Unmarshal(scanner.Bytes(), &e) == nil && e.Stage == "ResponseComplete" && e.ResponseStatus.Code < 300 {
				e.side = side
				events = append(events, e)
			}
		}
		if err := scanner.Err(); err != nil {
			t.Errorf("reading %s: %v", path, err)
		}
		_ = file.Close()
	}
	slices.SortStableFunc(events, func(a, b event) int { return a.StageTimestamp.Compare(b.StageTimestamp) })
	return events
}

// checkSingleWriter replays every write to the Cluster on both sides: at no
// moment did both hold an un-paused copy.
func checkSingleWriter(t *testing.T, events []event) {
	t.Helper()
	managing := map[string]bool{}
	writes, both := 0, 0
	for _, e := range events {
		if e.ObjectRef.Resource != "clusters" || e.ObjectRef.APIGroup != "cluster.x-k8s.io" || e.ObjectRef.Name != "kmgt" && e.Verb != "create" || e.ObjectRef.Subresource != "" {
			continue
		}
		var object struct {
			Metadata struct{ DeletionTimestamp *time.Time }
			Spec     struct{ Paused bool }
		}
		if len(e.ResponseObject) == 0 || json.Unmarshal(e.ResponseObject, &object) != nil {
			t.Fatalf("the audit log of the %s cluster has no answer to %s of the Cluster", e.side, e.Verb)
		}
		writes++
		managing[e.side] = e.Verb != "delete" && !object.Spec.Paused
		if managing["bootstrap"] && managing["management"] {
			both++
			t.Errorf("at %s both clusters held an un-paused copy (%s on the %s cluster)", e.StageTimestamp, e.Verb, e.side)
		}
	}
	if writes < 4 || !managing["management"] || managing["bootstrap"] {
		t.Errorf("%d writes were seen, and in the end the managers are %v: the audit logs do not tell the whole story", writes, managing)
	}
}

// checkNodeOrder looks that the node was not ready first, then got its provider
// id, then became ready.
func checkNodeOrder(t *testing.T, events []event) {
	t.Helper()
	var story []string
	note := func(what string) {
		if !slices.Contains(story, what) {
			story = append(story, what)
		}
	}
	for _, e := range events {
		if e.side != "management" || e.ObjectRef.Resource != "nodes" || len(e.ResponseObject) == 0 {
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
