// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// States of a Talos service, as `talosctl services` prints them
// (pkg/machinery... internal/app/machined/pkg/system/events/events.go).
const (
	statePreparing = "Preparing"
	stateRunning   = "Running"
	stateFailed    = "Failed"
	stateFinished  = "Finished"
)

// serviceEvents is how many events of a service Talos keeps.
const serviceEvents = 16

// service is one system service of a node.
type service struct {
	state   string
	events  []*machineapi.ServiceEvent
	unknown bool // no health check was made: Talos says "unknown", which is not unhealthy
	healthy bool
	message string
	since   time.Time
}

// serviceTable holds the services of a node and tells changes to a listener.
type serviceTable struct {
	mu       sync.Mutex
	services map[string]*service
	onChange func(id string, s service)
}

func newServiceTable(onChange func(id string, s service)) *serviceTable {
	return &serviceTable{services: map[string]*service{}, onChange: onChange}
}

// set moves a service into a state. A running service without a health check
// has unknown health.
func (t *serviceTable) set(id, state, message string) {
	t.update(id, func(s *service, now time.Time) {
		s.state = state
		s.events = append(s.events, &machineapi.ServiceEvent{Msg: message, State: state, Ts: timestamppb.New(now)})
		if n := len(s.events); n > serviceEvents {
			s.events = slices.Clone(s.events[n-serviceEvents:])
		}
		if state != stateRunning {
			s.unknown, s.healthy, s.message = true, false, ""
		}
	})
}

// health records the outcome of a service's health check.
func (t *serviceTable) health(id string, err error) {
	t.update(id, func(s *service, _ time.Time) {
		s.unknown, s.healthy, s.message = false, err == nil, ""
		if err != nil {
			s.message = err.Error()
		}
	})
}

func (t *serviceTable) update(id string, change func(*service, time.Time)) {
	now := time.Now()
	t.mu.Lock()
	s, ok := t.services[id]
	if !ok {
		s = &service{unknown: true}
		t.services[id] = s
	}
	before := *s
	change(s, now)
	if before.healthy != s.healthy || before.unknown != s.unknown || before.since.IsZero() {
		s.since = now
	}
	after := *s
	t.mu.Unlock()
	if t.onChange != nil && (before.state != after.state || before.healthy != after.healthy || before.unknown != after.unknown) {
		t.onChange(id, after)
	}
}

// running says whether a service is in the state Running.
func (t *serviceTable) running(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.services[id]
	return ok && s.state == stateRunning
}

// list is the answer of the call ServiceList, in the order of the names.
func (t *serviceTable) list() []*machineapi.ServiceInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := make([]string, 0, len(t.services))
	for id := range t.services {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	out := make([]*machineapi.ServiceInfo, 0, len(ids))
	for _, id := range ids {
		out = append(out, t.services[id].proto(id))
	}
	return out
}

func (s *service) proto(id string) *machineapi.ServiceInfo {
	return &machineapi.ServiceInfo{
		Id:     id,
		State:  s.state,
		Events: &machineapi.ServiceEvents{Events: slices.Clone(s.events)},
		Health: &machineapi.ServiceHealth{
			Unknown: s.unknown, Healthy: s.healthy, LastMessage: s.message, LastChange: timestamppb.New(s.since),
		},
	}
}
