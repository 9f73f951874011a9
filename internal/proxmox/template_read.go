// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// vmConfig is a VM's configuration as the API answers it: numbers come as JSON
// numbers or as strings, depending on the option.
type vmConfig map[string]json.RawMessage

// text answers an option as a string; empty when it is not set.
func (v vmConfig) text(name string) string {
	raw, ok := v[name]
	if !ok {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// number answers an option as a number, with a default where it is not set.
func (v vmConfig) number(name string, unset int) int {
	n, err := strconv.Atoi(v.text(name))
	if err != nil {
		return unset
	}
	return n
}

// property reads "a,b=c" into {"": "a", "b": "c"}.
func property(text string) map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			key, value = "", part
		}
		out[key] = value
	}
	return out
}

func (c *Client) readConfig(ctx context.Context, node string, id int) (vmConfig, error) {
	var config vmConfig
	if err := c.get(ctx, vmPath(node, id, "config"), nil, &config); err != nil {
		return nil, err
	}
	return config, nil
}

func vmPath(node string, id int, rest string) string {
	path := fmt.Sprintf("/nodes/%s/qemu/%d", node, id)
	if rest != "" {
		path += "/" + rest
	}
	return path
}

// ReadTemplate answers how a template stands. uuid, when not empty, is the
// SMBIOS UUID it must have: a VM that was given the same id after the template
// was deleted is not the template. The error is kube.ErrAbsent only where the
// template is proven to be gone; it is looked for on the other nodes first,
// since a template can be migrated.
func (c *Client) ReadTemplate(ctx context.Context, node string, id int, uuid string) (Template, error) {
	template, err := c.readVM(ctx, node, id)
	if missing(err) {
		var elsewhere string
		if elsewhere, err = c.nodeOf(ctx, id); err != nil {
			return Template{}, fmt.Errorf("looking for VM %d, which is not on node %s: %w", id, node, err)
		}
		if elsewhere == "" || elsewhere == node {
			return Template{}, absent("template %d on node %s", id, node)
		}
		template, err = c.readVM(ctx, elsewhere, id)
		if missing(err) {
			return Template{}, absent("template %d on node %s", id, node)
		}
	}
	if err != nil {
		return Template{}, fmt.Errorf("reading template %d on node %s: %w", id, node, err)
	}
	if uuid != "" && !strings.EqualFold(template.UUID, uuid) {
		return Template{}, absent("template %d with UUID %s: the VM of that id is another one (%s)", id, uuid, template.UUID)
	}
	return template, nil
}

// nodeOf answers the node of a VM, or an empty string where the cluster has no
// VM of that id.
func (c *Client) nodeOf(ctx context.Context, id int) (string, error) {
	resources, err := c.vmResources(ctx)
	if err != nil {
		return "", err
	}
	for _, r := range resources {
		if r.VMID == id && r.Type == "qemu" {
			return r.Node, nil
		}
	}
	return "", nil
}

type vmResource struct {
	Type string `json:"type"`
	Node string `json:"node"`
	VMID int    `json:"vmid"`
}

// vmResources lists the VMs of the whole cluster. Ids and nodes are current in
// it, names and tags may lag by seconds.
func (c *Client) vmResources(ctx context.Context) ([]vmResource, error) {
	var resources []vmResource
	if err := c.get(ctx, "/cluster/resources", params{"type": "vm"}, &resources); err != nil {
		return nil, fmt.Errorf("listing the VMs of the cluster: %w", err)
	}
	return resources, nil
}

// readVM reads a VM's configuration as that of a template. Its error is the
// API's own.
func (c *Client) readVM(ctx context.Context, node string, id int) (Template, error) {
	config, err := c.readConfig(ctx, node, id)
	if err != nil {
		return Template{}, err
	}
	m, description, _ := splitMark(config.text("description"))
	if m.ID != id {
		m = mark{} // the notes of the template that this VM was cloned from
	}
	importing, _, _ := strings.Cut(m.Image, ":")
	t := Template{
		Node: node, VMID: id,
		UUID:          property(config.text("smbios1"))["uuid"],
		Instance:      m.Instance,
		ImportStorage: importing,
		BIOS:          config.text("bios"),
		Labels:        m.Labels,
		TemplateSettings: TemplateSettings{
			Name:        config.text("name"),
			Description: description,
			Tags:        splitTags(config.text("tags")),
			CPUType:     cpuType(config.text("cpu")),
			Cores:       config.number("cores", 1),
			MemoryMiB:   memoryMiB(config.text("memory")),
			Agent:       agentOn(config.text("agent")),
		},
		mark:      m,
		digest:    config.text("digest"),
		protected: config.text("protection") == "1",
		converted: config.text("template") == "1",
		volumes:   map[string]string{},
		macs:      map[string]string{},
	}
	if t.BIOS == "" {
		t.BIOS = "seabios"
	}
	t.readDevices(config)
	t.Finished = t.converted && (m.Kind == "" || m.finished())
	return t, nil
}

func (t *Template) readDevices(config vmConfig) {
	for _, device := range []string{"scsi0", "efidisk0"} {
		disk := property(config.text(device))
		if disk[""] != "" && disk["media"] != "cdrom" {
			t.volumes[device] = disk[""]
		}
		if device == "scsi0" {
			t.diskBytes = sizeBytes(disk["size"])
		}
	}
	t.Storage, _, _ = strings.Cut(t.volumes["scsi0"], ":")
	network := property(config.text("net0"))
	t.Bridge = network["bridge"]
	t.VLAN, _ = strconv.Atoi(network["tag"])
	if mac := network["virtio"]; mac != "" {
		t.macs["net0"] = mac
	}
}

// cpuType reads "host,flags=..." and "cputype=host".
func cpuType(text string) string {
	p := property(text)
	if p["cputype"] != "" {
		return p["cputype"]
	}
	if p[""] == "" {
		return "kvm64" // what the API takes where nothing is set
	}
	return p[""]
}

// memoryMiB reads "2048" and "current=2048".
func memoryMiB(text string) int {
	p := property(text)
	value := p[""]
	if p["current"] != "" {
		value = p["current"]
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		return 512 // what the API takes where nothing is set
	}
	return n
}

// agentOn reads "1", "enabled=1" and "1,fstrim_cloned_disks=1".
func agentOn(text string) bool {
	p := property(text)
	return p[""] == "1" || p["enabled"] == "1"
}

var sizePattern = regexp.MustCompile(`^(\d+(?:\.\d+)?)([KMGT]?)$`)

// sizeBytes reads a disk size of a configuration, such as "20G"; zero where
// there is none.
func sizeBytes(text string) int64 {
	parts := sizePattern.FindStringSubmatch(text)
	if parts == nil {
		return 0
	}
	n, err := strconv.ParseFloat(parts[1], 64)
	if err != nil {
		return 0
	}
	shift := map[string]int{"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[parts[2]]
	return int64(math.Ldexp(n, shift))
}

// DiskGiB is the boot disk's size, rounded up; zero where it is not known.
func (t Template) DiskGiB() int {
	const gib = 1 << 30
	return int((t.diskBytes + gib - 1) / gib)
}
