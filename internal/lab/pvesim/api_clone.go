// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// convertVM makes a machine a template: its disks become base volumes.
func convertVM(c *call) (any, error) {
	m, err := c.findVM()
	if err != nil {
		return nil, err
	}
	if err := m.checkLock(); err != nil {
		return nil, err
	}
	if c.has("disk") {
		return nil, notImplemented("Converting a single disk is not simulated")
	}
	if m.template() {
		return nil, die("you can't convert a template to a template")
	}
	if c.running[m.ID] != nil {
		return nil, die("you can't convert a VM to template if VM is running")
	}
	node, id := m.Node, m.ID
	return c.fork(node, "qmtemplate", fmt.Sprint(id), c.who, c.opts.Timing.Template, func(w *worker) error {
		defer w.lockVM(id)()
		return w.locked(func() error { return w.makeTemplate(node, id) })
	}), nil
}

func (s *Simulator) makeTemplate(node string, id int) error {
	m, err := s.vmOn(node, id)
	if err != nil {
		return err
	}
	s.notice(m)
	m.Config["template"] = "1"
	for _, k := range drives(m.Config) {
		p := driveProperties(m.Config[k])
		st, v := s.driveVolume(node, m.Config[k])
		// Thick LVM knows no templates: its disks stay as they are.
		if v == nil || isCDROM(p) && !isCloudInitDrive(p["file"]) || !st.typ().linked {
			continue
		}
		if isCloudInitDrive(p["file"]) {
			continue
		}
		dir, file := "", v.Name
		if i := strings.LastIndex(file, "/"); i >= 0 {
			dir, file = file[:i+1], file[i+1:]
		}
		v.Name = dir + "base-" + strings.TrimPrefix(file, "vm-")
		v.Parent = ""
		p["file"] = v.id(st)
		m.Config[k] = printProperties(p, "file")
	}
	return nil
}

// cloneVM makes a new machine of a template or of a machine.
func cloneVM(c *call) (any, error) {
	newid, poolName, storage, target := c.integer("newid"), c.str("pool"), c.str("storage"), c.str("target")
	node := c.str("node")
	if poolName != "" && c.state.Pools[poolName] == nil {
		return nil, die("pool '%s' does not exist", poolName)
	}
	if target == node {
		target = ""
	}
	if target != "" {
		if _, ok := c.node(target); !ok {
			return nil, die("no such cluster node '%s'", target)
		}
	}
	if err := c.cloneStorage(storage, node, target); err != nil {
		return nil, err
	}
	m, err := c.findVM()
	if err != nil {
		return nil, err
	}
	if err := m.checkLock(); err != nil {
		return nil, err
	}
	if c.has("snapname") {
		return nil, die("snapshot '%s' does not exist", c.str("snapname"))
	}
	full := c.boolean("full", !m.template())
	if storage != "" && !full {
		return nil, die("parameter 'storage' not allowed for linked clones")
	}
	if c.has("format") && !full {
		return nil, die("parameter 'format' not allowed for linked clones")
	}
	if err := c.cloneRights(m, storage, target); err != nil {
		return nil, err
	}
	if c.state.VMs[newid] != nil {
		return nil, die("unable to create VM %d: config file already exists", newid)
	}
	if err := c.cloneable(m, full); err != nil {
		return nil, err
	}
	clone := &vm{ID: newid, Node: node, Config: map[string]string{"lock": "clone"}, Changed: c.opts.Clock.Now()}
	c.state.VMs[newid] = clone
	if poolName != "" {
		c.state.Pools[poolName].VMs = append(c.state.Pools[poolName].VMs, newid)
	}
	job := &cloning{
		source: m.ID, id: newid, node: node, target: target, storage: storage, format: c.str("format"), full: full,
		config: c.cloneConfig(m),
	}
	takes := c.opts.Timing.Clone
	if !full {
		takes /= 4
	}
	return c.fork(node, "qmclone", fmt.Sprint(m.ID), c.who, takes, func(w *worker) error {
		return w.locked(func() error { return job.finish(w.Simulator) })
	}), nil
}

// cloneStorage checks the storage asked for.
func (c *call) cloneStorage(storage, node, target string) error {
	if storage == "" {
		return nil
	}
	st, err := c.usableStorage(storage, node)
	if err != nil {
		return err
	}
	if target == "" {
		return nil
	}
	if _, err := c.usableStorage(storage, target); err != nil {
		return err
	}
	if !st.Shared {
		return die("can't clone to non-shared storage '%s'", storage)
	}
	return nil
}

// cloneRights checks the rights on disks and bridges, and that a clone for
// another node has no disk that stays here.
func (c *call) cloneRights(m *vm, storage, target string) error {
	shared := true
	for _, k := range drives(m.Config) {
		p := driveProperties(m.Config[k])
		id, _, ok := splitVolumeID(p["file"])
		if !ok {
			continue
		}
		st, err := c.storage(id)
		if err != nil {
			return err
		}
		shared = shared && st.Shared
		if isCDROM(p) && !isCloudInitDrive(p["file"]) {
			continue
		}
		if storage != "" {
			id = storage
		}
		if err := c.mayAllocate(c.who, id); err != nil {
			return err
		}
	}
	if err := c.mayUseBridges(c.who, m.Config); err != nil {
		return err
	}
	if target != "" && !shared {
		return die("can't clone VM to node '%s' (VM uses local storage)", target)
	}
	return nil
}

// cloneable refuses linked clones that the storage cannot make.
func (c *call) cloneable(m *vm, full bool) error {
	for _, k := range drives(m.Config) {
		p := driveProperties(m.Config[k])
		st, v := c.driveVolume(m.Node, m.Config[k])
		if v == nil || full || isCDROM(p) {
			continue
		}
		if !st.typ().linked || !v.base() {
			return die("Linked clone feature is not supported for '%s' (%s)", p["file"], k)
		}
	}
	return nil
}

var keepNot = []string{"template", "lock", "protection", "vmgenid", "parent", "snaptime"}

// cloneConfig is the configuration of the clone before its disks are made.
func (c *call) cloneConfig(m *vm) map[string]string {
	config := map[string]string{}
	for k, v := range m.effective() {
		switch {
		case slices.Contains(keepNot, k), strings.HasPrefix(k, "unused"):
		case reNet.MatchString(k):
			config[k] = freshMAC(v)
		default:
			config[k] = v
		}
	}
	config["smbios1"] = "uuid=" + uuid.NewString()
	if old := reUUID.FindStringSubmatch(m.Config["smbios1"]); old != nil {
		config["smbios1"] = reUUID.ReplaceAllString(m.Config["smbios1"], config["smbios1"])
	}
	config["vmgenid"] = uuid.NewString()
	config["name"] = c.str("name")
	if config["name"] == "" {
		config["name"] = "Copy-of-" + strings.ReplaceAll(m.name(), " ", "-")
	}
	if c.has("description") {
		config["description"] = c.str("description")
	}
	return config
}

var reMAC = regexp.MustCompile(`=([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}`)

func freshMAC(v string) string { return reMAC.ReplaceAllString(v, "="+newMAC()) }

// cloning is the worker of a clone.
type cloning struct {
	source, id      int
	node, target    string
	storage, format string
	full            bool
	config          map[string]string
}

// finish makes the disks and lets the clone go. When it fails, nothing of the
// clone stays.
func (j *cloning) finish(s *Simulator) error {
	m := s.state.VMs[j.id]
	if m == nil {
		return die("clone failed: VM %d is gone", j.id)
	}
	config := maps.Clone(j.config)
	for _, k := range drives(j.config) {
		value, err := j.copyDrive(s, k, j.config[k])
		if err != nil {
			s.state.forgetVM(j.id)
			return fmt.Errorf("clone failed: %w", err)
		}
		config[k] = value
	}
	s.notice(m)
	m.Config = config
	if j.target != "" {
		m.Node = j.target
	}
	return nil
}

func (j *cloning) copyDrive(s *Simulator, k, value string) (string, error) {
	p := driveProperties(value)
	if p["file"] == "none" || p["file"] == "cdrom" || isCDROM(p) && !isCloudInitDrive(p["file"]) {
		return value, nil
	}
	st, v := s.driveVolume(j.node, value)
	if v == nil {
		return "", die("volume '%s' does not exist", p["file"])
	}
	to, format := st, v.Format
	if j.storage != "" {
		to = s.state.Storages[j.storage]
		if to == nil {
			return "", die("storage '%s' does not exist", j.storage)
		}
	}
	if j.format != "" {
		format = j.format
	}
	if !slices.Contains(to.typ().formats, format) {
		format = to.typ().formats[0]
	}
	var disk *volume
	if isCloudInitDrive(p["file"]) {
		disk = s.addVolume(to, j.node, &volume{
			Name: to.diskName(j.id, fmt.Sprintf("vm-%d-cloudinit", j.id), format), Content: "images", Format: format, Size: v.Size, VMID: j.id, Serial: newSerial(),
		})
	} else {
		disk = s.newDisk(to, j.node, j.id, format, v.Size)
		disk.Blob, disk.Image = v.Blob, v.Image
		if !j.full {
			disk.Parent = v.Name
		}
	}
	p["file"], p["size"] = disk.id(to), printSize(disk.Size)
	return printProperties(p, "file"), nil
}

func vmFeature(c *call) (any, error) {
	m, err := c.findVM()
	if err != nil {
		return nil, err
	}
	has := true
	shared := true
	for _, k := range drives(m.Config) {
		p := driveProperties(m.Config[k])
		st, v := c.driveVolume(m.Node, m.Config[k])
		if v == nil || isCDROM(p) {
			continue
		}
		shared = shared && st.Shared
		switch c.str("feature") {
		case "clone":
			has = has && st.typ().linked && v.base()
		case "snapshot":
			has = has && !v.base() && (st.typ().linked && !st.typ().files || v.Format == "qcow2")
		}
	}
	nodes := []string{}
	for _, n := range c.opts.Nodes {
		if has && (shared || n.Name == m.Node) {
			nodes = append(nodes, n.Name)
		}
	}
	return map[string]any{"hasFeature": flag(has), "nodes": nodes}, nil
}
