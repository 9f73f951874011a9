// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

func getConfig(c *call) (any, error) {
	m, err := c.findVM()
	if err != nil {
		return nil, err
	}
	if c.has("snapshot") {
		return nil, die("snapshot '%s' does not exist", c.str("snapshot"))
	}
	config := m.effective()
	if c.boolean("current", false) {
		config = maps.Clone(m.Config)
	}
	out := map[string]any{"digest": m.digest()}
	for k, v := range config {
		out[k] = typed(k, v)
	}
	return out, nil
}

// typed gives a value of a configuration its JSON type: integers and booleans
// are numbers, memory is a string since it became a property string in 8.1.
func typed(k, v string) any {
	if k == "cipassword" {
		return "**********"
	}
	p, ok := vmOptions.find(k)
	if !ok || p.kind != kindInteger && p.kind != kindBoolean && p.kind != kindNumber {
		return v
	}
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		return n
	}
	return v
}

func getPending(c *call) (any, error) {
	m, err := c.findVM()
	if err != nil {
		return nil, err
	}
	keys := slices.Collect(maps.Keys(m.Config))
	for k := range m.Pending {
		if _, ok := m.Config[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	out := []map[string]any{{"key": "digest", "value": m.digest()}}
	for _, k := range keys {
		row := map[string]any{"key": k}
		if v, ok := m.Config[k]; ok {
			row["value"] = typed(k, v)
		}
		if v, ok := m.Pending[k]; ok {
			if v == nil {
				row["delete"] = 1
			} else {
				row["pending"] = typed(k, *v)
			}
		}
		out = append(out, row)
	}
	return out, nil
}

// updateConfig serves POST, which leaves the work to a task, and PUT.
func updateConfig(c *call) (any, error) {
	options := c.options()
	remove, revert := splitList(c.str("delete")), splitList(c.str("revert"))
	if len(options) == 0 && len(remove) == 0 && len(revert) == 0 {
		return nil, die("no options specified")
	}
	for _, k := range slices.Concat(remove, revert) {
		if _, ok := vmOptions.find(k); !ok {
			return nil, invalid("delete", "unknown option '%s'", k)
		}
		if _, ok := options[k]; ok {
			return nil, invalid("delete", "you can't use '-%s' and -delete %s' at the same time", k, k)
		}
	}
	id, node := c.integer("vmid"), c.str("node")
	if err := c.mayChange(node, id, options, remove); err != nil {
		return nil, err
	}
	m, err := c.findVM()
	if err != nil {
		return nil, err
	}
	if d := c.str("digest"); d != "" && d != m.digest() {
		return nil, die("checksum mismatch (file change by other user?)")
	}
	if !c.boolean("skiplock", false) {
		if err := m.checkLock(); err != nil {
			return nil, err
		}
	}
	if err := checkBootDevices(m.effective(), options, remove); err != nil {
		return nil, err
	}
	if c.request.Method == "PUT" {
		return nil, c.change(node, id, options, remove, revert)
	}
	return c.fork(node, "qmconfig", fmt.Sprint(id), c.who, c.opts.Timing.Config, func(w *worker) error {
		return w.locked(func() error { return w.change(node, id, options, remove, revert) })
	}), nil
}

// mayChange checks the rights for an update.
func (c *call) mayChange(node string, id int, options map[string]string, remove []string) error {
	touched := maps.Clone(options)
	for _, k := range remove {
		if m := c.state.VMs[id]; m != nil {
			touched[k] = m.Config[k]
		}
	}
	if len(touched) == 0 {
		if err := c.demand(c.who, vmPath(id), "VM.Config.Options"); err != nil {
			return err
		}
	}
	if err := c.mayModify(c.who, id, "", false, touched); err != nil {
		return err
	}
	if c.state.VMs[id] == nil {
		return nil
	}
	if err := c.checkDrives(c.who, node, id, options); err != nil {
		return err
	}
	return c.mayUseBridges(c.who, options)
}

// checkBootDevices refuses a boot order of devices that are not there. The stray
// quote is Proxmox VE's.
func checkBootDevices(config, options map[string]string, remove []string) error {
	for _, dev := range bootOrder(options["boot"]) {
		_, now := config[dev]
		_, then := options[dev]
		if !then && (!now || slices.Contains(remove, dev)) {
			return die("invalid bootorder: device '%s' does not exist'", dev)
		}
	}
	return nil
}

// coldOptions need a power cycle when the machine runs.
var coldOptions = []string{
	"cores", "sockets", "memory", "balloon", "cpu", "numa", "boot", "bios", "machine", "scsihw", "agent", "vga", "smbios1", "vmgenid", "ostype", "acpi", "kvm", "rng0", "efidisk0", "tpmstate0", "args",
}

func cold(k string) bool {
	return slices.Contains(coldOptions, k) || strings.HasPrefix(k, "serial")
}

// change writes options into a machine's configuration, or behind it as pending
// when the machine runs and cannot take them.
func (s *Simulator) change(node string, id int, options map[string]string, remove, revert []string) error {
	m, err := s.vmOn(node, id)
	if err != nil {
		return err
	}
	s.notice(m)
	set := func(k string, v *string) {
		switch {
		case s.running[id] != nil && cold(k):
			if m.Pending == nil {
				m.Pending = map[string]*string{}
			}
			m.Pending[k] = v
		case v == nil:
			delete(m.Config, k)
		default:
			m.Config[k] = *v
			delete(m.Pending, k)
		}
	}
	for _, k := range revert {
		delete(m.Pending, k)
	}
	for _, k := range remove {
		s.detach(m, k)
		set(k, nil)
	}
	// The boot order first, as a new drive may append itself to it.
	keys := slices.Sorted(maps.Keys(options))
	for _, k := range keys {
		v := options[k]
		if isDrive(k) {
			if v, err = s.changeDrive(m, k, v, options, set); err != nil {
				return err
			}
		}
		set(k, &v)
	}
	return nil
}

// detach keeps a disk that is taken out of its drive as unused.
func (s *Simulator) detach(m *vm, k string) {
	value, ok := m.Config[k]
	if !ok {
		return
	}
	if order := bootOrder(m.Config["boot"]); slices.Contains(order, k) {
		order = slices.DeleteFunc(order, func(d string) bool { return d == k })
		m.Config["boot"] = "order=" + strings.Join(order, ";")
	}
	st, v := s.driveVolume(m.Node, value)
	if v == nil || v.VMID != m.ID {
		return
	}
	if strings.HasPrefix(k, "unused") || isCloudInitDrive(value) {
		s.removeVolume(v)
		return
	}
	if !isDrive(k) {
		return
	}
	for n := 0; ; n++ {
		key := fmt.Sprintf("unused%d", n)
		if _, taken := m.Config[key]; !taken {
			m.Config[key] = v.id(st)
			return
		}
	}
}

// changeDrive puts something else into a drive. A new CD drive goes to the end of
// the boot order.
func (s *Simulator) changeDrive(m *vm, k, value string, options map[string]string, set func(string, *string)) (string, error) {
	old, existed := m.Config[k]
	written, _, err := s.makeDrive(m.Node, m.ID, k, value)
	if err != nil {
		return "", err
	}
	if existed && driveProperties(old)["file"] != driveProperties(written)["file"] && !isCDROM(driveProperties(old)) {
		boot := m.Config["boot"]
		s.detach(m, k)
		m.Config["boot"] = boot
	}
	boot := m.effective()["boot"]
	if b, ok := options["boot"]; ok {
		boot = b
	}
	if order := bootOrder(boot); !existed && isCDROM(driveProperties(written)) && len(order) > 0 && !slices.Contains(order, k) {
		boot = "order=" + strings.Join(append(order, k), ";")
		options["boot"] = boot
		set("boot", &boot)
	}
	return written, nil
}

func resizeDisk(c *call) (any, error) {
	m, err := c.findVM()
	if err != nil {
		return nil, err
	}
	if d := c.str("digest"); d != "" && d != m.digest() {
		return nil, die("checksum mismatch (file change by other user?)")
	}
	node, id, disk, size := m.Node, m.ID, c.str("disk"), c.str("size")
	if _, ok := m.Config[disk]; !ok {
		return nil, die("disk '%s' does not exist", disk)
	}
	if isCDROM(driveProperties(m.Config[disk])) {
		return nil, die("can't resize a cdrom")
	}
	if !c.boolean("skiplock", false) {
		if err := m.checkLock(); err != nil {
			return nil, err
		}
	}
	return c.fork(node, "resize", fmt.Sprint(id), c.who, c.opts.Timing.Resize, func(w *worker) error {
		return w.locked(func() error { return w.resize(node, id, disk, size) })
	}), nil
}

func (s *Simulator) resize(node string, id int, disk, size string) error {
	m, err := s.vmOn(node, id)
	if err != nil {
		return err
	}
	_, v := s.driveVolume(node, m.Config[disk])
	if v == nil {
		return die("disk '%s' does not exist", disk)
	}
	n, _ := parseSize(strings.TrimPrefix(size, "+"))
	if strings.HasPrefix(size, "+") {
		n += v.Size
	}
	if n < v.Size {
		return die("shrinking disks is not supported")
	}
	v.Size = n
	p := driveProperties(m.Config[disk])
	p["size"] = printSize(n)
	m.Config[disk] = printProperties(p, "file")
	return nil
}
