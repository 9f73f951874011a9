// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
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
	found, listErr := vmResource{}, error(nil)
	if err == nil || missing(err) {
		found, listErr = c.vmResource(ctx, id)
	}
	if missing(err) {
		if listErr != nil {
			return Template{}, fmt.Errorf("looking for VM %d, which is not on node %s: %w", id, node, listErr)
		}
		if found.Node == "" || found.Node == node {
			return Template{}, absent("template %d on node %s", id, node)
		}
		template, err = c.readVM(ctx, found.Node, id)
		if missing(err) {
			return Template{}, absent("template %d on node %s", id, node)
		}
	}
	if err != nil {
		return Template{}, fmt.Errorf("reading template %d on node %s: %w", id, node, err)
	}
	if listErr != nil {
		return Template{}, fmt.Errorf("reading the pool of template %d: %w", id, listErr)
	}
	template.Pool = found.Pool
	if uuid != "" && !strings.EqualFold(template.UUID, uuid) {
		return Template{}, absent("template %d with UUID %s: the VM of that id is another one (%s)", id, uuid, template.UUID)
	}
	return template, nil
}

// vmResource answers what the cluster lists of a VM; zero where it lists none of
// that id.
func (c *Client) vmResource(ctx context.Context, id int) (vmResource, error) {
	resources, err := c.vmResources(ctx)
	if err != nil {
		return vmResource{}, err
	}
	for _, r := range resources {
		if r.VMID == id && r.Type == "qemu" {
			return r, nil
		}
	}
	return vmResource{}, nil
}

type vmResource struct {
	Type     string `json:"type"`
	Node     string `json:"node"`
	VMID     int    `json:"vmid"`
	Name     string `json:"name"`
	Pool     string `json:"pool"`
	Template int    `json:"template"`
	Tags     string `json:"tags"`
}

// TemplatesTagged names the templates of the cluster that have exactly these tags,
// but for those of the given ids. The selector of Cluster API's Proxmox provider,
// which compares them so, refuses to choose between two.
func (c *Client) TemplatesTagged(ctx context.Context, tags []string, except []int64) ([]string, error) {
	resources, err := c.vmResources(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range resources {
		if r.Type == "qemu" && r.Template == 1 && slices.Equal(splitTags(r.Tags), normalTags(tags)) && !slices.Contains(except, int64(r.VMID)) {
			out = append(out, fmt.Sprintf("VM %d (%s) on node %s", r.VMID, r.Name, r.Node))
		}
	}
	slices.Sort(out)
	return out, nil
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
	t := Template{
		Node: node, VMID: id,
		UUID:      property(config.text("smbios1"))["uuid"],
		Instance:  m.Instance,
		Labels:    m.Labels,
		mark:      m,
		digest:    config.text("digest"),
		converted: config.text("template") == "1",
		volumes:   map[string]string{},
	}
	t.TemplateSettings, t.macs = settingsOf(config, description)
	t.readHardware(config)
	t.Finished = t.converted && (m.Kind == "" || m.finished())
	return t, nil
}

// readHardware reads the disks and the firmware.
func (t *Template) readHardware(config vmConfig) {
	for _, device := range []string{"scsi0", "efidisk0", "tpmstate0"} {
		disk := property(config.text(device))
		if disk[""] == "" || disk["media"] == "cdrom" {
			continue
		}
		t.volumes[device] = disk[""]
		switch device {
		case "scsi0":
			t.diskBytes = sizeBytes(disk["size"])
			t.Disk = diskOptions(disk)
		case "efidisk0":
			t.PreEnrolledKeys = disk["pre-enrolled-keys"] == "1"
		}
	}
	t.Storage, _, _ = strings.Cut(t.volumes["scsi0"], ":")
	t.TPM = t.volumes["tpmstate0"] != ""
	t.TemplateHardware.DiskGiB = t.sizeGiB()
	if t.BIOS = config.text("bios"); t.BIOS == "" {
		t.BIOS = "seabios" // what the API takes where nothing is set
	}
	if drive := property(config.text("ide2"))[""]; strings.Contains(drive, "cloudinit") {
		t.CloudInitStorage, _, _ = strings.Cut(drive, ":")
	}
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

// sizeGiB is the boot disk's size, rounded up; zero where it is not known.
func (t Template) sizeGiB() int {
	const gib = 1 << 30
	return int((t.diskBytes + gib - 1) / gib)
}
