// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// eventLog keeps every event of one boot and lets readers follow it. Talos keeps
// the last 1000; a simulated machine makes far fewer.
type eventLog struct {
	mu      sync.Mutex
	events  []loggedEvent
	changed chan struct{}
	boot    int64
}

type loggedEvent struct {
	at  time.Time
	msg *machineapi.Event
}

func newEventLog() *eventLog {
	return &eventLog{changed: make(chan struct{}), boot: time.Now().UnixNano()}
}

// newEvent packs a payload the way Talos does: the type URL carries the prefix
// talos/runtime/, which machinery's client insists on.
func newEvent(id, actor string, payload proto.Message) (*machineapi.Event, error) {
	e := &machineapi.Event{Id: id, ActorId: actor, Data: &anypb.Any{TypeUrl: "talos/runtime/"}}
	if payload == nil {
		return e, nil
	}
	value, err := proto.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("encode an event: %w", err)
	}
	e.Data = &anypb.Any{
		TypeUrl: "talos/runtime/" + string(payload.ProtoReflect().Descriptor().FullName()),
		Value:   value,
	}
	return e, nil
}

func (l *eventLog) publish(payload proto.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// IDs grow with time, as Talos's xids do, so that tail_id can compare them.
	e, err := newEvent(fmt.Sprintf("%016x%08x", l.boot, len(l.events)+1), "", payload)
	if err != nil {
		return
	}
	l.events = append(l.events, loggedEvent{at: time.Now(), msg: e})
	close(l.changed)
	l.changed = make(chan struct{})
}

// sequence publishes the start or the end of one of Talos's sequences, such as
// boot, shutdown or reset.
func (l *eventLog) sequence(name string, action machineapi.SequenceEvent_Action) {
	l.publish(&machineapi.SequenceEvent{Sequence: name, Action: action})
}

// follow sends the events that the request asks for and then every new one until
// ctx ends.
func (l *eventLog) follow(ctx context.Context, req *machineapi.EventsRequest, send func(*machineapi.Event) error) error {
	next := l.start(req)
	for {
		l.mu.Lock()
		batch, changed := l.events[min(next, len(l.events)):], l.changed
		l.mu.Unlock()
		for _, e := range batch {
			next++
			if req.GetWithActorId() != "" && e.msg.GetActorId() != req.GetWithActorId() {
				continue
			}
			// the reader may set metadata on what it gets: never hand out the original
			if err := send(proto.CloneOf(e.msg)); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// start is the index of the first event to send: by default none of the past.
func (l *eventLog) start(req *machineapi.EventsRequest) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case req.GetTailEvents() < 0:
		return 0
	case req.GetTailEvents() > 0:
		return max(0, len(l.events)-int(req.GetTailEvents()))
	case req.GetTailId() != "":
		for i, e := range l.events {
			if e.msg.GetId() > req.GetTailId() {
				return i
			}
		}
	case req.GetTailSeconds() > 0:
		since := time.Now().Add(-time.Duration(req.GetTailSeconds()) * time.Second)
		for i, e := range l.events {
			if !e.at.Before(since) {
				return i
			}
		}
	}
	return len(l.events)
}
