// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package audit reads the audit logs of tests' API servers, and tells from those
// of two management clusters whether both have managed a Cluster at once.
package audit

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Event is one request that an API server has carried out.
type Event struct {
	// Side is the name of the API server.
	Side      string    `json:"-"`
	Stage     string    `json:"stage"`
	Verb      string    `json:"verb"`
	ObjectRef ObjectRef `json:"objectRef"`
	URI       string    `json:"requestURI"`
	Response  struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	ResponseObject json.RawMessage `json:"responseObject"`
	// Received is when the request came, Done when it was answered.
	Received time.Time `json:"requestReceivedTimestamp"`
	Done     time.Time `json:"stageTimestamp"`
}

// ObjectRef names what a request was about.
type ObjectRef struct {
	APIGroup    string `json:"apiGroup"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
}

// Read answers the requests of an audit log that were carried out and changed one
// of the resources ("clusters", ...). A last line
// that is not complete yet is left out. An API server begins a new file after
// 100 MB and renames the old one, which is read as well.
func Read(side, path string, resources ...string) ([]Event, error) {
	files, err := filepath.Glob(strings.TrimSuffix(path, ".log") + "*.log")
	if err != nil || len(files) == 0 {
		return nil, errors.Join(fmt.Errorf("there is no audit log of %s at %s", side, path), err)
	}
	var events []Event
	for _, file := range files {
		found, err := readFile(side, file, resources)
		if err != nil {
			return nil, err
		}
		events = append(events, found...)
	}
	slices.SortStableFunc(events, func(a, b Event) int { return a.Done.Compare(b.Done) })
	return events, nil
}

func readFile(side, path string, resources []string) ([]Event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the audit log of %s: %w", side, err)
	}
	defer func() { _ = file.Close() }()
	var events []Event
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e Event
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Stage == "ResponseComplete" && e.Response.Code < 300 && slices.Contains(resources, e.ObjectRef.Resource) {
			if strings.Contains(e.URI, "dryRun=") {
				continue // nothing was stored
			}
			e.Side = side
			events = append(events, e)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the audit log of %s: %w", side, err)
	}
	return events, nil
}

// write is a moment at which a side began or ended to manage a Cluster.
type write struct {
	at      time.Time
	side    string
	cluster string
	verb    string
	manages bool
}

// cluster is what an answer tells of a Cluster. A request for the metadata alone
// is answered with that alone, and tells nothing of the pause in the
// specification.
type cluster struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name        string            `json:"name"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Paused bool `json:"paused"`
	} `json:"spec"`
}

const pausedAnnotation = "cluster.x-k8s.io/paused"

// writeOf answers what a request changed of who manages a Cluster, if anything.
// One that un-pauses counts from when it came, and one that pauses from when it
// was answered: in doubt both manage it.
func writeOf(e *Event) (write, bool, error) {
	if e.ObjectRef.APIGroup != "cluster.x-k8s.io" || e.ObjectRef.Resource != "clusters" || e.ObjectRef.Subresource != "" {
		return write{}, false, nil
	}
	var o cluster
	if err := json.Unmarshal(e.ResponseObject, &o); err != nil {
		return write{}, false, fmt.Errorf("the audit log of %s has no answer to %s of Cluster %s/%s: %w", e.Side, e.Verb, e.ObjectRef.Namespace, e.ObjectRef.Name, err)
	}
	w := write{at: e.Done, side: e.Side, cluster: e.ObjectRef.Namespace + "/" + cmp.Or(e.ObjectRef.Name, o.Metadata.Name), verb: e.Verb}
	switch {
	case e.Verb == "delete" && o.Kind == "Status":
		return w, true, nil
	case o.Kind != "Cluster":
		return write{}, false, nil
	}
	_, annotated := o.Metadata.Annotations[pausedAnnotation]
	if w.manages = !o.Spec.Paused && !annotated; w.manages {
		w.at = e.Received
	}
	return w, true, nil
}

// Managers is what the audit logs of two clusters tell.
type Managers struct {
	// Writes is the number of writes to Clusters.
	Writes int
	// Both tells of each moment at which two sides managed the same Cluster.
	Both []string
	// Last are the sides that manage each Cluster in the end, by namespace/name.
	Last map[string][]string
}

// Replay goes through every write to a Cluster on all sides in its order.
func Replay(events []Event) (Managers, error) {
	var writes []write
	for i := range events {
		w, ok, err := writeOf(&events[i])
		if err != nil {
			return Managers{}, err
		}
		if ok {
			writes = append(writes, w)
		}
	}
	slices.SortStableFunc(writes, func(a, b write) int { return a.at.Compare(b.at) })
	told := Managers{Writes: len(writes), Last: map[string][]string{}}
	for _, w := range writes {
		now := slices.DeleteFunc(told.Last[w.cluster], func(side string) bool { return side == w.side })
		if w.manages {
			now = append(now, w.side)
		}
		told.Last[w.cluster] = now
		if len(now) > 1 {
			told.Both = append(told.Both, fmt.Sprintf("at %s both %s managed Cluster %s (after %s on %s)", w.at.Format(time.RFC3339Nano), strings.Join(now, " and "), w.cluster, w.verb, w.side))
		}
	}
	return told, nil
}
