// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// line is one event of an audit log. The times are seconds.
func line(verb string, received, done int, answer string) string {
	return fmt.Sprintf(`{"stage":"ResponseComplete","verb":%q,"objectRef":{"apiGroup":"cluster.x-k8s.io","resource":"clusters","namespace":"n","name":"c"},`+
		`"responseStatus":{"code":200},"responseObject":%s,"requestReceivedTimestamp":"2026-01-01T00:00:%02dZ","stageTimestamp":"2026-01-01T00:00:%02dZ"}`, verb, answer, received, done)
}

const (
	managed  = `{"kind":"Cluster","metadata":{"name":"c"},"spec":{}}`
	paused   = `{"kind":"Cluster","metadata":{"name":"c"},"spec":{"paused":true}}`
	noted    = `{"kind":"Cluster","metadata":{"name":"c","annotations":{"cluster.x-k8s.io/paused":""}},"spec":{}}`
	metadata = `{"kind":"PartialObjectMetadata","metadata":{"name":"c"}}`
	gone     = `{"kind":"Status"}`
)

func TestReplay(t *testing.T) {
	tests := map[string]struct {
		source, target []string
		both           int
		last           string
	}{
		"a move in the right order has one manager": {
			source: []string{line("create", 1, 1, managed), strings.Replace(line("create", 1, 1, managed), `"stage"`, `"requestURI":"/x?dryRun=All","stage"`, 1), line("patch", 2, 3, paused), line("patch", 6, 6, metadata), line("delete", 7, 7, gone)},
			target: []string{strings.Replace(line("create", 1, 2, managed), `"stage"`, `"requestURI":"/x?dryRun=All","stage"`, 1), line("create", 4, 4, paused), line("patch", 5, 5, metadata), line("patch", 8, 8, managed)},
			last:   "target",
		},
		"a target that is un-paused before the source lets go is told": {
			source: []string{line("create", 1, 1, managed), line("delete", 5, 5, gone)},
			target: []string{line("create", 4, 4, managed)},
			both:   1, last: "target",
		},
		"a pause counts from its answer and an un-pausing from its request": {
			source: []string{line("create", 1, 1, managed), line("patch", 2, 6, noted)},
			target: []string{line("create", 1, 1, paused), line("patch", 5, 7, managed)},
			both:   1, last: "target",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var events []Event
			for side, lines := range map[string][]string{"source": test.source, "target": test.target} {
				path := filepath.Join(t.TempDir(), side+".log")
				if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n{\"half"), 0o600); err != nil {
					t.Fatal(err)
				}
				read, err := Read(side, path, "clusters")
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, read...)
			}
			told, err := Replay(events)
			if err != nil || len(told.Both) != test.both || strings.Join(told.Last["n/c"], " ") != test.last {
				t.Errorf("%+v, %v; want %d moments of two managers and %s in the end", told, err, test.both, test.last)
			}
		})
	}
}
