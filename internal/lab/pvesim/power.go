// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"k8s.io/utils/clock"
)

// power is a machine that is switched on.
type power struct {
	pid    int
	since  time.Time
	guest  Guest
	paused bool
}

// Ender is a [Guest] that can power itself off: the machine is stopped when the
// channel is closed.
type Ender interface{ Done() <-chan struct{} }

// powerCall forks the task of a change of power.
func powerCall(c *call, typ string, takes time.Duration, do func(w *worker, node string, id int) error) (any, error) {
	m, err := c.findVM()
	if err != nil {
		return nil, err
	}
	node, id := m.Node, m.ID
	return c.fork(node, typ, fmt.Sprint(id), c.who, takes, func(w *worker) error { return do(w, node, id) }), nil
}

func startVM(c *call) (any, error) {
	return powerCall(c, "qmstart", c.opts.Timing.Start, func(w *worker, node string, id int) error { return w.powerOn(node, id) })
}

func stopVM(c *call) (any, error) {
	return powerCall(c, "qmstop", c.opts.Timing.Stop, func(w *worker, node string, id int) error {
		defer w.lockVM(id)()
		if err := w.unlockedVM(node, id); err != nil {
			return err
		}
		w.powerOff(id)
		return nil
	})
}

// shutdownTimeout is how long a guest is waited for unless the call says so.
const shutdownTimeout = 60 * time.Second

func shutdownVM(c *call) (any, error) {
	timeout := shutdownTimeout
	if c.has("timeout") {
		timeout = time.Duration(c.integer("timeout")) * time.Second
	}
	force := c.boolean("forceStop", false)
	return powerCall(c, "qmshutdown", 0, func(w *worker, node string, id int) error {
		defer w.lockVM(id)()
		return w.shutdown(node, id, timeout, force)
	})
}

func rebootVM(c *call) (any, error) {
	timeout := shutdownTimeout
	if c.has("timeout") {
		timeout = time.Duration(c.integer("timeout")) * time.Second
	}
	return powerCall(c, "qmreboot", 0, func(w *worker, node string, id int) error {
		unlock := w.lockVM(id)
		err := w.shutdown(node, id, timeout, false)
		unlock()
		if err != nil {
			return err
		}
		return w.powerOn(node, id)
	})
}

func resetVM(c *call) (any, error) {
	return powerCall(c, "qmreset", 0, func(w *worker, node string, id int) error {
		w.mu.Lock()
		on := w.running[id] != nil
		w.mu.Unlock()
		if !on {
			return die("VM %d not running", id)
		}
		unlock := w.lockVM(id)
		w.powerOff(id)
		unlock()
		return w.powerOn(node, id)
	})
}

func resumeVM(c *call) (any, error) {
	return powerCall(c, "qmresume", 0, func(w *worker, node string, id int) error {
		return w.locked(func() error {
			p := w.running[id]
			if p == nil {
				return die("VM %d not running", id)
			}
			p.paused = false
			return nil
		})
	})
}

// unlockedVM answers an error for a machine that is gone or locked.
func (s *Simulator) unlockedVM(node string, id int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.vmOn(node, id)
	if err != nil {
		return err
	}
	return m.checkLock()
}

// powerOn starts a machine and what is inside.
func (s *Simulator) powerOn(node string, id int) error {
	defer s.lockVM(id)()
	p, hardware, err := s.switchOn(node, id)
	if err != nil || hardware.TemplateImage == "" || s.opts.Booter == nil {
		return err
	}
	guest, err := s.opts.Booter.Boot(s.ctx, hardware)
	if err != nil {
		s.opts.Log("machine %d on %s does not boot: %v", id, node, err)
		return nil
	}
	s.mu.Lock()
	p.guest = guest
	closing := s.ctx.Err() != nil
	s.mu.Unlock()
	if closing {
		guest.Kill()
		return nil
	}
	if e, ok := guest.(Ender); ok {
		s.watch(id, p, e.Done())
	}
	return nil
}

// switchOn checks the configuration, applies what was pending and marks the
// machine as running.
func (s *Simulator) switchOn(node string, id int) (*power, VM, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.save()
	m, err := s.vmOn(node, id)
	if err != nil {
		return nil, VM{}, err
	}
	if m.template() {
		return nil, VM{}, die("you can't start a vm if it's a template")
	}
	if err := m.checkLock(); err != nil {
		return nil, VM{}, err
	}
	if s.running[id] != nil {
		return nil, VM{}, die("VM %d already running", id)
	}
	m.Config = m.effective()
	m.Pending = nil
	if err := s.startable(m); err != nil {
		return nil, VM{}, err
	}
	s.state.NextPID++
	p := &power{pid: s.state.NextPID, since: s.opts.Clock.Now()}
	s.running[id] = p
	m.Running = true
	return p, s.hardware(m), nil
}

// startable checks what QEMU would trip over.
func (s *Simulator) startable(m *vm) error {
	n, ok := s.node(m.Node)
	if !ok {
		return die("the node '%s' is no longer a member of the cluster", m.Node)
	}
	for _, k := range slices.Sorted(maps.Keys(m.Config)) {
		if reNet.MatchString(k) {
			if b := parseProperties(m.Config[k], "model")["bridge"]; b != "" && !slices.Contains(n.Bridges, b) {
				return die("bridge '%s' does not exist", b)
			}
		}
	}
	for _, k := range drives(m.Config) {
		file := driveProperties(m.Config[k])["file"]
		if _, _, ok := splitVolumeID(file); ok && s.findVolume(m.Node, file) == nil {
			return die("volume '%s' does not exist", file)
		}
	}
	return nil
}

// hardware is what a guest sees.
func (s *Simulator) hardware(m *vm) VM {
	hw := VM{
		Node: m.Node, ID: m.ID, Name: m.Config["name"], UUID: m.uuid(), Config: maps.Clone(m.Config),
		MemoryMiB: m.memoryMiB(), Cores: m.cores(),
		CDROM: func() ([]byte, error) { return s.cdrom(m.Node, m.ID) },
	}
	order := bootOrder(m.Config["boot"])
	if len(order) == 0 {
		order = drives(m.Config)
	}
	for _, k := range order {
		if _, v := s.driveVolume(m.Node, m.Config[k]); v != nil && v.Image != "" {
			hw.TemplateImage, hw.Disk = v.Image, v.Serial
			break
		}
	}
	return hw
}

// cdrom reads the ISO image in drive ide0.
func (s *Simulator) cdrom(node string, id int) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.vmOn(node, id)
	if err != nil {
		return nil, err
	}
	_, v := s.driveVolume(node, m.Config["ide0"])
	if v == nil || v.Blob == "" {
		return nil, nil
	}
	f, err := s.blobs.open(v.Blob)
	if err != nil {
		return nil, fmt.Errorf("reading the CD in machine %d: %w", id, err)
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(f)
}

// powerOff takes the power away. The caller holds the machine's lock.
func (s *Simulator) powerOff(id int) {
	s.mu.Lock()
	p := s.running[id]
	s.mu.Unlock()
	if p == nil {
		return
	}
	if p.guest != nil {
		p.guest.Kill()
	}
	s.switchedOff(id, p)
}

// switchedOff forgets that a machine runs, and applies what was pending.
func (s *Simulator) switchedOff(id int, p *power) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The end of the simulator is not the machine's.
	if s.closed || s.running[id] != p {
		return
	}
	delete(s.running, id)
	if m := s.state.VMs[id]; m != nil {
		m.Running = false
		m.Config = m.effective()
		m.Pending = nil
	}
	s.save()
}

// shutdown asks the guest; force takes the power when it does not obey. The
// caller holds the machine's lock.
func (s *worker) shutdown(node string, id int, timeout time.Duration, force bool) error {
	if err := s.unlockedVM(node, id); err != nil {
		return err
	}
	s.mu.Lock()
	p := s.running[id]
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	ctx, cancel := withTimeout(s.ctx, s.opts.Clock, timeout)
	defer cancel()
	err := errors.New("nothing inside that listens")
	if p.guest != nil {
		err = p.guest.Shutdown(ctx)
	} else {
		<-ctx.Done()
	}
	if err != nil {
		if s.ctx.Err() != nil {
			return s.ctx.Err()
		}
		if !force {
			return die("VM quit/powerdown failed - got timeout")
		}
	}
	if err := s.sleep(s.opts.Timing.Shutdown); err != nil {
		return err
	}
	s.powerOff(id)
	return nil
}

// withTimeout ends with a time of the simulator's own clock.
func withTimeout(ctx context.Context, c clock.Clock, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	timer := c.NewTimer(d)
	go func() {
		defer timer.Stop()
		select {
		case <-timer.C():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// watch stops a machine whose guest powers itself off.
func (s *Simulator) watch(id int, p *power, done <-chan struct{}) {
	s.workers.Go(func() {
		select {
		case <-done:
		case <-s.ctx.Done():
			return
		}
		s.switchedOff(id, p)
	})
}

// powerOnAgain starts the machines that ran when the simulator ended, whichever
// way it did.
func (s *Simulator) powerOnAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.state.VMs)) {
		m := s.state.VMs[id]
		if !m.Running {
			continue
		}
		node := m.Node
		s.fork(node, "qmstart", fmt.Sprint(id), principal{user: superuser}, s.opts.Timing.Start, func(*worker) error { return s.powerOn(node, id) })
	}
}

func listVMs(c *call) (any, error) {
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(c.state.VMs)) {
		m := c.state.VMs[id]
		if m.Node == c.str("node") && c.may(c.who, vmPath(id), "VM.Audit") {
			out = append(out, c.vmState(m))
		}
	}
	return out, nil
}

// vmState is a machine as lists and status/current show it.
func (s *Simulator) vmState(m *vm) map[string]any {
	out := map[string]any{
		"vmid": m.ID, "name": m.name(), "status": "stopped", "cpus": m.cores(), "maxmem": int64(m.memoryMiB()) << 20,
		"maxdisk": s.bootSize(m), "mem": 0, "cpu": 0, "disk": 0, "diskread": 0, "diskwrite": 0, "netin": 0, "netout": 0, "uptime": 0,
	}
	if m.template() {
		out["template"] = 1
	}
	for _, k := range []string{"tags", "lock"} {
		if v := m.Config[k]; v != "" {
			out[k] = v
		}
	}
	if p := s.running[m.ID]; p != nil {
		out["status"], out["pid"], out["cpu"] = "running", p.pid, 0.05
		out["uptime"] = int64(s.opts.Clock.Now().Sub(p.since) / time.Second)
		out["mem"] = int64(m.memoryMiB()) << 19
	}
	return out
}

// bootSize is the size of the first disk.
func (s *Simulator) bootSize(m *vm) int64 {
	for _, k := range append(bootOrder(m.Config["boot"]), drives(m.Config)...) {
		if _, v := s.driveVolume(m.Node, m.Config[k]); v != nil && v.Content == "images" && !isCloudInitDrive(m.Config[k]) {
			return v.Size
		}
	}
	return 0
}

func vmStatus(c *call) (any, error) {
	m, err := c.findVM()
	if err != nil {
		return nil, err
	}
	out := c.vmState(m)
	out["ha"] = map[string]any{"managed": 0}
	out["qmpstatus"] = out["status"]
	if m.agentEnabled() {
		out["agent"] = 1
	}
	if p := c.running[m.ID]; p != nil {
		out["running-qemu"], out["running-machine"] = "9.2.0", "pc-i440fx-9.2+pve1"
		if p.paused {
			out["qmpstatus"] = "paused"
		}
	}
	return out, nil
}
