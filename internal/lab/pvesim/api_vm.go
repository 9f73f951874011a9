// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
)

func vmEndpoints() []endpoint {
	node, id := nodeParam("node").need(), vmidParam("vmid").need()
	const base = "/nodes/{node}/qemu/{vmid}"
	one := schema{node, id}
	with := func(s schema, more ...param) schema { return append(slices.Clone(s), more...) }
	audit, power := perm("/vms/{vmid}", "VM.Audit"), perm("/vms/{vmid}", "VM.PowerMgmt")
	change := with(one, vmOptions...)
	change = append(change, str("delete"), str("revert"), str("digest").between(0, 40), boolean("force"), boolean("skiplock"))
	create := append(with(one, vmOptions...), str("archive"), storageParam("storage"), boolean("force"), boolean("unique"),
		integer("bwlimit"), poolParam("pool"), boolean("start"), boolean("live-restore"), storageParam("import-working-storage"), boolean("ha-managed"))
	return []endpoint{
		{method: "GET", path: "/nodes/{node}/qemu", schema: schema{node, boolean("full")}, handle: listVMs},
		{method: "POST", path: "/nodes/{node}/qemu", schema: create, handle: createVM},
		{method: "GET", path: "/nodes/{node}/lxc", schema: schema{node}, handle: func(*call) (any, error) { return []any{}, nil }},
		{method: "GET", path: base, schema: one, handle: vmIndex},
		{method: "DELETE", path: base, schema: with(one, boolean("purge"), boolean("destroy-unreferenced-disks"), boolean("skiplock")),
			check: perm("/vms/{vmid}", "VM.Allocate"), handle: deleteVM},
		{method: "GET", path: base + "/config", schema: with(one, boolean("current"), str("snapshot")), check: audit, handle: getConfig},
		{method: "POST", path: base + "/config", schema: with(change, integer("background_delay").between(1, 30), str("import-working-storage")), handle: updateConfig},
		{method: "PUT", path: base + "/config", schema: change, handle: updateConfig},
		{method: "GET", path: base + "/pending", schema: one, check: audit, handle: getPending},
		{method: "PUT", path: base + "/resize", check: perm("/vms/{vmid}", "VM.Config.Disk"), handle: resizeDisk, schema: with(one,
			str("disk").need().matching(`^(ide[0-3]|scsi([0-9]|[12][0-9]|30)|virtio([0-9]|1[0-5])|sata[0-5]|efidisk0|tpmstate0)$`),
			str("size").need().matching(`^\+?\d+(\.\d+)?[KMGT]?$`), str("digest").between(0, 40), boolean("skiplock"))},
		{method: "POST", path: base + "/template", schema: with(one, str("disk")), check: perm("/vms/{vmid}", "VM.Allocate"), handle: convertVM},
		{method: "POST", path: base + "/clone", handle: cloneVM,
			check: allOf(perm("/vms/{vmid}", "VM.Clone"), anyOf(perm("/vms/{newid}", "VM.Allocate"), permWith("pool", "/pool/{pool}", "VM.Allocate"))),
			schema: with(one, vmidParam("newid").need(), dnsNameParam("name"), str("description"), poolParam("pool"), str("snapname").between(0, 40),
				storageParam("storage"), str("format").oneOf("raw", "qcow2", "vmdk"), boolean("full"), nodeParam("target"), integer("bwlimit"))},
		{method: "GET", path: base + "/feature", schema: with(one, str("feature").need().oneOf("snapshot", "clone", "copy"), str("snapname")), check: audit, handle: vmFeature},
		{method: "GET", path: base + "/status/current", schema: one, check: audit, handle: vmStatus},
		{method: "POST", path: base + "/status/start", check: power, handle: startVM, schema: with(one,
			boolean("skiplock"), str("stateuri"), str("machine"), str("force-cpu"), integer("timeout"), str("migratedfrom"), str("migration_type"), str("targetstorage"))},
		{method: "POST", path: base + "/status/stop", check: power, handle: stopVM, schema: with(one,
			boolean("skiplock"), boolean("keepActive"), integer("timeout"), str("migratedfrom"), boolean("overrule-shutdown"))},
		{method: "POST", path: base + "/status/shutdown", check: power, handle: shutdownVM, schema: with(one,
			boolean("skiplock"), integer("timeout"), boolean("forceStop"), boolean("keepActive"))},
		{method: "POST", path: base + "/status/reboot", check: power, handle: rebootVM, schema: with(one, integer("timeout"))},
		{method: "POST", path: base + "/status/reset", check: power, handle: resetVM, schema: with(one, boolean("skiplock"))},
		{method: "POST", path: base + "/status/resume", check: power, handle: resumeVM, schema: with(one, boolean("skiplock"), boolean("nocheck"))},
	}
}

func vmIndex(c *call) (any, error) {
	if _, err := c.findVM(); err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for _, d := range []string{"config", "pending", "status", "agent", "template", "clone", "resize", "feature"} {
		out = append(out, map[string]any{"subdir": d})
	}
	return out, nil
}

// whereIs says which node has a machine, for the text about a taken id.
func (s *Simulator) taken(id int) error {
	if m := s.state.VMs[id]; m != nil {
		return fmt.Errorf("VM %d already exists on node '%s'", id, m.Node)
	}
	return nil
}

// notOptions are the parameters of a create or an update that are not part of
// the configuration.
var notOptions = []string{
	"node", "vmid", "archive", "storage", "force", "unique", "bwlimit", "pool", "start", "live-restore", "import-working-storage", "ha-managed",
	"delete", "revert", "digest", "skiplock", "background_delay",
}

// options are the configuration keys among the parameters.
func (c *call) options() map[string]string {
	out := map[string]string{}
	for k := range c.in {
		if !slices.Contains(notOptions, k) {
			out[k] = normalOption(k, c.str(k))
		}
	}
	return out
}

// normalOption brings a value to the form that is written down.
func normalOption(k, v string) string {
	switch {
	case k == "tags":
		return normalTags(v)
	case reNet.MatchString(k):
		return normalNet(v)
	case k == "memory":
		return strings.TrimPrefix(v, "current=")
	}
	return v
}

func createVM(c *call) (any, error) {
	node, id, poolName := c.str("node"), c.integer("vmid"), c.str("pool")
	if c.has("archive") {
		return nil, notImplemented("Restoring an archive is not simulated")
	}
	if poolName != "" && c.state.Pools[poolName] == nil {
		return nil, die("pool '%s' does not exist", poolName)
	}
	if c.has("storage") {
		if err := c.demand(c.who, "/storage/"+c.str("storage"), "Datastore.AllocateSpace"); err != nil {
			return nil, err
		}
	}
	if !c.may(c.who, vmPath(id), "VM.Allocate") && (poolName == "" || !c.may(c.who, "/pool/"+poolName, "VM.Allocate")) {
		return nil, forbidden("")
	}
	options := c.options()
	if err := c.checkDrives(c.who, node, id, options); err != nil {
		return nil, err
	}
	if err := c.mayModify(c.who, id, poolName, true, options); err != nil {
		return nil, err
	}
	if err := c.mayUseBridges(c.who, options); err != nil {
		return nil, err
	}
	if err := c.taken(id); err != nil {
		return nil, die("unable to create VM %d - %v", id, err)
	}
	c.state.VMs[id] = &vm{ID: id, Node: node, Config: map[string]string{"lock": "create"}, Changed: c.opts.Clock.Now()}
	if poolName != "" {
		c.state.Pools[poolName].VMs = append(c.state.Pools[poolName].VMs, id)
	}
	start := c.boolean("start", false)
	upid := c.fork(node, "qmcreate", fmt.Sprint(id), c.who, c.opts.Timing.Create, func(w *worker) error {
		err := w.locked(func() error { return w.buildVM(node, id, options) })
		if err == nil && start {
			w.mu.Lock()
			w.fork(node, "qmstart", fmt.Sprint(id), w.who, w.opts.Timing.Start, func(w *worker) error { return w.powerOn(node, id) })
			w.mu.Unlock()
		}
		return err
	})
	return upid, nil
}

// buildVM makes the disks of a new machine and writes its configuration. When it
// fails, nothing of the machine stays.
func (s *Simulator) buildVM(node string, id int, options map[string]string) error {
	m := s.state.VMs[id]
	config := maps.Clone(options)
	for _, name := range drives(options) {
		value, _, err := s.makeDrive(node, id, name, options[name])
		if err != nil {
			s.state.forgetVM(id)
			return fmt.Errorf("unable to create VM %d - %w", id, err)
		}
		config[name] = value
	}
	if config["boot"] == "" {
		config["boot"] = defaultBoot(config)
	}
	now := s.opts.Clock.Now().Unix()
	if config["smbios1"] == "" {
		config["smbios1"] = "uuid=" + uuid.NewString()
	}
	if config["vmgenid"] == "" {
		config["vmgenid"] = uuid.NewString()
	}
	config["meta"] = fmt.Sprintf("creation-qemu=9.2.0,ctime=%d", now)
	s.notice(m)
	m.Config = config
	return nil
}

// defaultBoot is the order that a machine gets when none is asked for: the first
// disk, the first CD drive, the first network device.
func defaultBoot(config map[string]string) string {
	var disk, cd, network string
	for _, k := range drives(config) {
		p := driveProperties(config[k])
		switch {
		case isCDROM(p) && cd == "":
			cd = k
		case !isCDROM(p) && disk == "" && !strings.HasPrefix(k, "efi") && !strings.HasPrefix(k, "tpm"):
			disk = k
		}
	}
	for _, k := range slices.Sorted(maps.Keys(config)) {
		if reNet.MatchString(k) {
			network = k
			break
		}
	}
	order := slices.DeleteFunc([]string{disk, cd, network}, func(d string) bool { return d == "" })
	return "order=" + strings.Join(order, ";")
}

// deleteVM checks what stands against it at once and leaves the rest to a task.
func deleteVM(c *call) (any, error) {
	m, err := c.findVM()
	if err != nil {
		return nil, err
	}
	if m.Config["protection"] == "1" {
		return nil, die("can't remove VM %d - protection mode enabled", m.ID)
	}
	if c.running[m.ID] != nil {
		return nil, die("VM %d is running - destroy failed", m.ID)
	}
	node, id, unreferenced := m.Node, m.ID, c.boolean("destroy-unreferenced-disks", false)
	return c.fork(node, "qmdestroy", fmt.Sprint(id), c.who, c.opts.Timing.Delete, func(w *worker) error {
		defer w.lockVM(id)()
		var destroyed []string
		err := w.locked(func() (err error) {
			destroyed, err = w.destroyVM(node, id, unreferenced)
			return err
		})
		if d, ok := w.opts.Booter.(Destroyer); ok && err == nil {
			for _, disk := range destroyed {
				if derr := d.Destroy(disk); derr != nil {
					w.logf("%v", derr)
				}
			}
		}
		return err
	}), nil
}

// destroyVM removes a machine and answers the serials of its disks.
func (s *Simulator) destroyVM(node string, id int, unreferenced bool) ([]string, error) {
	m, err := s.vmOn(node, id)
	if err != nil {
		return nil, err
	}
	if s.running[id] != nil {
		return nil, die("VM %d is running - destroy failed", id)
	}
	if err := m.checkLock(); err != nil {
		return nil, err
	}
	owned := map[*volume]bool{}
	for k, value := range m.Config {
		if !isDrive(k) && !strings.HasPrefix(k, "unused") {
			continue
		}
		st, v := s.driveVolume(node, value)
		if v == nil || v.VMID != id {
			continue
		}
		if v.base() && st.typ().visible && s.inUse(v) {
			return nil, die("base volume '%s' is still in use by linked cloned", v.id(st))
		}
		owned[v] = true
	}
	var serials []string
	for _, v := range slices.Clone(s.state.Volumes) {
		if owned[v] || unreferenced && v.VMID == id {
			s.removeVolume(v)
			serials = append(serials, v.Serial)
		}
	}
	rest := s.state.Volumes
	s.state.Volumes = nil
	s.state.forgetVM(id)
	s.state.Volumes = rest
	return serials, nil
}
