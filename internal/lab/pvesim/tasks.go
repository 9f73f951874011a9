// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// task is a piece of work that goes on after the call that asked for it.
type task struct {
	UPID   string   `json:"upid"`
	Node   string   `json:"node"`
	PID    int      `json:"pid"`
	PStart int      `json:"pstart"`
	Start  int64    `json:"starttime"`
	End    int64    `json:"endtime,omitempty"`
	Type   string   `json:"type"`
	ID     string   `json:"id"`
	Who    string   `json:"who"`
	Exit   string   `json:"exitstatus,omitempty"`
	Log    []string `json:"log,omitempty"`
}

// worker is the running side of a task.
type worker struct {
	*Simulator
	task   *task
	ctx    context.Context
	cancel context.CancelFunc
	who    principal
}

const taskOK = "OK"

// maxTasks is how many finished tasks are remembered.
const maxTasks = 2000

// fork starts a task that sleeps for as long as the work takes and then does it.
// The caller holds the simulator's lock; do runs without it.
func (s *Simulator) fork(node, typ, id string, who principal, takes time.Duration, do func(*worker) error) string {
	s.state.NextPID++
	now := s.opts.Clock.Now()
	t := &task{
		Node: node, PID: s.state.NextPID, PStart: int(now.UnixMilli()/10) & 0x7fffffff, Start: now.Unix(),
		Type: typ, ID: id, Who: who.String(),
	}
	t.UPID = fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", node, t.PID, t.PStart, t.Start, typ, escapeID(id), t.Who)
	w := &worker{Simulator: s, task: t, who: who}
	w.ctx, w.cancel = context.WithCancel(s.ctx)
	s.state.Tasks = append(s.state.Tasks, t)
	if n := len(s.state.Tasks) - maxTasks; n > 0 {
		s.state.Tasks = s.state.Tasks[n:]
	}
	if s.closed {
		w.cancel()
		t.Exit, t.End = "interrupted by signal", t.Start
		return t.UPID
	}
	s.live[t.UPID] = w
	s.workers.Add(1)
	go func() {
		defer s.workers.Done()
		w.run(takes, do)
	}()
	return t.UPID
}

// escapeID hides what would break the fields of a UPID apart.
func escapeID(id string) string {
	var b strings.Builder
	for _, c := range []byte(id) {
		if c == ':' || c == '/' || c == '\\' || c <= ' ' || c > '~' {
			fmt.Fprintf(&b, "\\x%02x", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

func (w *worker) run(takes time.Duration, do func(*worker) error) {
	defer w.cancel()
	err := w.sleep(takes)
	if err == nil {
		err = do(w)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.task.Exit = taskOK
		w.task.Log = append(w.task.Log, "TASK OK")
	case w.ctx.Err() != nil && errors.Is(err, context.Canceled):
		w.task.Exit = "interrupted by signal"
		w.task.Log = append(w.task.Log, "TASK ERROR: interrupted by signal")
	default:
		w.task.Exit = strings.Join(strings.Fields(err.Error()), " ")
		w.task.Log = append(w.task.Log, "TASK ERROR: "+w.task.Exit)
	}
	w.task.End = w.opts.Clock.Now().Unix()
	delete(w.live, w.task.UPID)
	w.save()
}

// sleep waits on the simulator's clock.
func (w *worker) sleep(d time.Duration) error {
	if d <= 0 {
		return w.ctx.Err()
	}
	select {
	case <-w.opts.Clock.After(d):
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// logf adds a line to the task's log.
func (w *worker) logf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.task.Log = append(w.task.Log, fmt.Sprintf(format, args...))
}

// locked runs f with the simulator's lock and keeps what it changed.
func (w *worker) locked(f func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := f()
	w.save()
	return err
}

// findTask reads a UPID.
func (s *Simulator) findTask(upid string) (*task, error) {
	if !validUPID(upid) {
		return nil, invalid("upid", "unable to parse worker upid")
	}
	for _, t := range s.state.Tasks {
		if t.UPID == upid {
			return t, nil
		}
	}
	return nil, invalid("upid", "no such task")
}

func validUPID(upid string) bool {
	f := strings.Split(upid, ":")
	if len(f) != 9 || f[0] != "UPID" || f[8] != "" || !reNodeName.MatchString(f[1]) || f[5] == "" || f[7] == "" {
		return false
	}
	for _, hex := range f[2:5] {
		if _, err := strconv.ParseUint(hex, 16, 64); err != nil || len(hex) < 8 || len(hex) > 9 {
			return false
		}
	}
	return true
}

// mayReadTask says whether who may see a task: a token sees its own only.
func (s *Simulator) mayReadTask(who principal, t *task) bool {
	return t.Who == who.String() || s.may(who, "/nodes/"+t.Node, "Sys.Audit")
}

// status is the task as GET .../status shows it.
func (t *task) status() map[string]any {
	who := parsePrincipal(t.Who)
	m := map[string]any{
		"upid": t.UPID, "node": t.Node, "pid": t.PID, "pstart": t.PStart, "starttime": t.Start,
		"type": t.Type, "id": t.ID, "user": who.user, "status": "running",
	}
	if who.token != "" {
		m["tokenid"] = who.token
	}
	if t.Exit != "" {
		m["status"], m["exitstatus"] = "stopped", t.Exit
	}
	return m
}

// listed is the task as task lists show it.
func (t *task) listed() map[string]any {
	m := t.status()
	delete(m, "exitstatus")
	delete(m, "status")
	if t.Exit != "" {
		m["endtime"], m["status"] = t.End, t.Exit
	}
	return m
}

func taskEndpoints() []endpoint {
	upid := str("upid").need()
	node := nodeParam("node").need()
	return []endpoint{
		{method: "GET", path: "/cluster/tasks", handle: clusterTasks},
		{method: "GET", path: "/nodes/{node}/tasks", handle: nodeTasks, schema: schema{
			node, integer("start"), integer("limit"), str("userfilter"), str("typefilter"), vmidParam("vmid"),
			boolean("errors"), str("source").oneOf("archive", "active", "all"), integer("since"), integer("until"), str("statusfilter"),
		}},
		{method: "GET", path: "/nodes/{node}/tasks/{upid}/status", schema: schema{node, upid}, handle: taskStatus},
		{method: "GET", path: "/nodes/{node}/tasks/{upid}/log", schema: schema{node, upid, integer("start"), integer("limit"), boolean("download")}, handle: taskLog},
		{method: "DELETE", path: "/nodes/{node}/tasks/{upid}", schema: schema{node, upid}, handle: stopTask},
	}
}

func taskStatus(c *call) (any, error) {
	t, err := c.findTask(c.str("upid"))
	if err != nil {
		return nil, err
	}
	if !c.mayReadTask(c.who, t) {
		return nil, c.demand(c.who, "/nodes/"+t.Node, "Sys.Audit")
	}
	return t.status(), nil
}

func taskLog(c *call) (any, error) {
	t, err := c.findTask(c.str("upid"))
	if err != nil {
		return nil, err
	}
	if !c.mayReadTask(c.who, t) {
		return nil, c.demand(c.who, "/nodes/"+t.Node, "Sys.Audit")
	}
	start, limit := c.integer("start"), 50
	if c.has("limit") {
		limit = c.integer("limit")
	}
	lines := []map[string]any{}
	for i, text := range t.Log {
		if i >= start && (limit == 0 || len(lines) < limit) {
			lines = append(lines, map[string]any{"n": i + 1, "t": text})
		}
	}
	if len(lines) == 0 {
		lines = append(lines, map[string]any{"n": 1, "t": "no content"})
	}
	return lines, nil
}

func stopTask(c *call) (any, error) {
	t, err := c.findTask(c.str("upid"))
	if err != nil {
		return nil, err
	}
	if t.Who != c.who.String() {
		if err := c.demand(c.who, "/nodes/"+t.Node, "Sys.Modify"); err != nil {
			return nil, err
		}
	}
	if w := c.live[t.UPID]; w != nil {
		w.cancel()
	}
	return nil, nil
}

func clusterTasks(c *call) (any, error) {
	out := []map[string]any{}
	for i := len(c.state.Tasks) - 1; i >= 0 && len(out) < 50; i-- {
		if t := c.state.Tasks[i]; c.mayReadTask(c.who, t) {
			out = append(out, t.listed())
		}
	}
	return out, nil
}

func nodeTasks(c *call) (any, error) {
	start, limit, source := c.integer("start"), 50, c.str("source")
	if c.has("limit") {
		limit = c.integer("limit")
	}
	if source == "" {
		source = "archive"
	}
	out := []map[string]any{}
	for i := len(c.state.Tasks) - 1; i >= 0 && len(out) < limit; i-- {
		t := c.state.Tasks[i]
		switch {
		case t.Node != c.str("node"), !c.mayReadTask(c.who, t),
			source == "archive" && t.Exit == "", source == "active" && t.Exit != "",
			c.has("typefilter") && t.Type != c.str("typefilter"), c.has("vmid") && t.ID != c.str("vmid"),
			c.has("userfilter") && !strings.Contains(t.Who, c.str("userfilter")),
			c.boolean("errors", false) && t.Exit == taskOK:
			continue
		}
		if start > 0 {
			start--
			continue
		}
		out = append(out, t.listed())
	}
	return out, nil
}
