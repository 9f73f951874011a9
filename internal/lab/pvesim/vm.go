// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// vm is a virtual machine's configuration and what goes with it.
type vm struct {
	ID   int    `json:"id"`
	Node string `json:"node"`
	// Config is the current configuration in Proxmox VE's notation.
	Config map[string]string `json:"config"`
	// Pending holds changes that need a power cycle; a nil string deletes.
	Pending map[string]*string `json:"pending,omitempty"`
	// Running says that the machine is switched on, or was when the simulator
	// ended.
	Running bool `json:"running,omitempty"`
	// Changed is when name, tags or template changed last; until the statistics
	// catch up, lists show Published.
	Changed   time.Time         `json:"changed"`
	Published map[string]string `json:"published,omitempty"`
}

func (m *vm) template() bool { return m.Config["template"] == "1" }

func vmPath(id int) string { return fmt.Sprintf("/vms/%d", id) }

const descriptionKey = "description"

// digest is the SHA-1 of the configuration file's text.
func (m *vm) digest() string {
	var b strings.Builder
	for line := range strings.SplitSeq(m.Config[descriptionKey], "\n") {
		if m.Config[descriptionKey] != "" {
			fmt.Fprintf(&b, "#%s\n", line)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(m.Config)) {
		if k != descriptionKey {
			fmt.Fprintf(&b, "%s: %s\n", k, m.Config[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(m.Pending)) {
		fmt.Fprintf(&b, "[PENDING] %s\n", k)
	}
	sum := sha1.Sum([]byte(b.String()))
	return hex.EncodeToString(sum[:])
}

// effective is the configuration with pending changes applied.
func (m *vm) effective() map[string]string {
	out := maps.Clone(m.Config)
	for k, v := range m.Pending {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = *v
		}
	}
	return out
}

// number reads an integer of the configuration.
func (m *vm) number(key string, def int) int {
	if n, err := strconv.Atoi(m.Config[key]); err == nil {
		return n
	}
	return def
}

func (m *vm) cores() int     { return m.number("cores", 1) * m.number("sockets", 1) }
func (m *vm) memoryMiB() int { return m.number("memory", 512) }

var reUUID = regexp.MustCompile(`uuid=([0-9a-fA-F-]{36})`)

func (m *vm) uuid() string {
	if f := reUUID.FindStringSubmatch(m.Config["smbios1"]); f != nil {
		return strings.ToLower(f[1])
	}
	return ""
}

func (m *vm) agentEnabled() bool {
	v := parseProperties(m.Config["agent"], "enabled")["enabled"]
	b, _ := parseBool(v)
	return b == "1"
}

// name is the machine's name as lists show it.
func (m *vm) name() string { return cmp.Or(m.Config["name"], fmt.Sprintf("VM %d", m.ID)) }

// notice remembers what lists showed before a change.
func (s *Simulator) notice(m *vm) {
	now := s.opts.Clock.Now()
	if now.Sub(m.Changed) >= s.opts.Timing.ResourceLag {
		m.Published = m.summary()
	}
	m.Changed = now
}

func (m *vm) summary() map[string]string {
	out := map[string]string{}
	for _, k := range []string{"name", "tags", "template"} {
		if v := m.Config[k]; v != "" {
			out[k] = v
		}
	}
	return out
}

// published is what the statistics know about a machine; known is false while
// they have never seen it.
func (s *Simulator) published(m *vm) (summary map[string]string, known bool) {
	if s.opts.Clock.Now().Sub(m.Changed) >= s.opts.Timing.ResourceLag {
		return m.summary(), true
	}
	return m.Published, m.Published != nil
}

// forgetVM removes a machine with its disks, permissions and pool membership.
func (st *state) forgetVM(id int) {
	delete(st.VMs, id)
	st.dropVolume(func(v *volume) bool { return v.VMID == id })
	st.ACL = slices.DeleteFunc(st.ACL, func(e aclEntry) bool { return e.Path == vmPath(id) })
	for _, p := range st.Pools {
		p.VMs = slices.DeleteFunc(p.VMs, func(v int) bool { return v == id })
	}
}

// findVM answers the machine of the call, on the node of the call.
func (c *call) findVM() (*vm, error) {
	return c.vmOn(c.str("node"), c.integer("vmid"))
}

func (s *Simulator) vmOn(node string, id int) (*vm, error) {
	m := s.state.VMs[id]
	if m == nil || m.Node != node {
		return nil, die("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", node, id)
	}
	return m, nil
}

// checkLock refuses a machine that a task holds.
func (m *vm) checkLock() error {
	if l := m.Config["lock"]; l != "" {
		return die("VM is locked (%s)", l)
	}
	return nil
}

// lockVM takes the lock of a machine's configuration file, which serialises
// tasks. It must be called without the simulator's lock.
func (s *Simulator) lockVM(id int) (unlock func()) {
	s.mu.Lock()
	l := s.vmLocks[id]
	if l == nil {
		l = &sync.Mutex{}
		s.vmLocks[id] = l
	}
	s.mu.Unlock()
	l.Lock()
	return l.Unlock
}

// parseProperties reads "a,b=c"; a part without a key belongs to def.
func parseProperties(s, def string) map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(s, ",") {
		k, v, ok := strings.Cut(part, "=")
		if !ok {
			k, v = def, part
		}
		if part != "" {
			out[k] = v
		}
	}
	return out
}

// printProperties writes properties as Proxmox VE does: the default key first
// and without its name, then the others by name.
func printProperties(p map[string]string, def string) string {
	var parts []string
	if v, ok := p[def]; ok {
		parts = append(parts, v)
	}
	for _, k := range slices.Sorted(maps.Keys(p)) {
		if k != def {
			parts = append(parts, k+"="+p[k])
		}
	}
	return strings.Join(parts, ",")
}

var reDrive = regexp.MustCompile(`^(scsi|virtio|sata|ide|efidisk|tpmstate)\d+$`)

func isDrive(key string) bool { return reDrive.MatchString(key) }

var reNet = regexp.MustCompile(`^net\d+$`)

// drives are the keys of a configuration's drives, in order of their names.
func drives(config map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(config)) {
		if isDrive(k) {
			out = append(out, k)
		}
	}
	return out
}

func driveProperties(v string) map[string]string { return parseProperties(v, "file") }

func isCDROM(p map[string]string) bool { return p["media"] == "cdrom" }

func isCloudInitDrive(file string) bool {
	return strings.HasSuffix(file, ":cloudinit") || strings.Contains(file, "-cloudinit")
}

// bootOrder reads "order=scsi0;ide2".
func bootOrder(boot string) []string {
	order := parseProperties(boot, "legacy")["order"]
	return strings.FieldsFunc(order, func(r rune) bool { return r == ';' })
}

// printSize is Proxmox VE's notation of a size in bytes.
func printSize(n int64) string {
	unit := ""
	for _, u := range []string{"K", "M", "G", "T"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, u
	}
	return strconv.FormatInt(n, 10) + unit
}

var reSize = regexp.MustCompile(`^(\d+)(\.\d+)?([KMGT])?$`)

// parseSize reads a size in bytes.
func parseSize(s string) (int64, bool) {
	f := reSize.FindStringSubmatch(s)
	if f == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(f[1]+f[2], 64)
	if err != nil {
		return 0, false
	}
	for _, u := range []string{"K", "M", "G", "T"} {
		if f[3] == "" {
			break
		}
		n *= 1024
		if u == f[3] {
			break
		}
	}
	return int64(n), true
}

// newMAC answers an address with Proxmox VE's prefix.
func newMAC() string {
	b := randomBytes(3)
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", b[0], b[1], b[2])
}

var netModels = []string{"e1000", "e1000-82540em", "e1000-82544gc", "e1000-82545em", "e1000e", "i82551", "i82557b", "i82559er", "ne2k_isa", "ne2k_pci", "pcnet", "rtl8139", "virtio", "vmxnet3"}

// normalNet gives a network device an address and Proxmox VE's order.
func normalNet(v string) string {
	p := parseProperties(v, "model")
	model, mac := p["model"], p["macaddr"]
	for _, m := range netModels {
		if addr, ok := p[m]; ok {
			model, mac = m, addr
			delete(p, m)
		}
	}
	delete(p, "model")
	delete(p, "macaddr")
	if mac == "" {
		mac = newMAC()
	}
	rest := printProperties(p, "")
	if rest != "" {
		rest = "," + rest
	}
	return model + "=" + strings.ToUpper(mac) + rest
}

// normalTags lower-cases, sorts and joins tags.
func normalTags(v string) string {
	tags := splitList(strings.ToLower(v))
	slices.Sort(tags)
	return strings.Join(slices.Compact(tags), ";")
}
