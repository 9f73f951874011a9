// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ImageSource is a disk image that a template is made of.
type ImageSource interface {
	// URL is where Proxmox VE itself may download the image; an uncompressed
	// qcow2, raw or vmdk.
	URL() string
	// Prepare makes the image available under its URL. It is idempotent.
	Prepare(ctx context.Context) error
	// Size answers the image's length in bytes.
	Size(ctx context.Context) (int64, error)
	// Download writes the image to out and answers its length in bytes. A
	// truncated transfer is an error.
	Download(ctx context.Context, out io.Writer) (int64, error)
}

// TemplateSpec is what a template is to be.
type TemplateSpec struct {
	// Node is where the template is made.
	Node string
	// VMID is the wished id; zero means the next free one.
	VMID int
	// Storage takes the disks, ImportStorage the image file until it is
	// imported; empty means the first storage of the node with content "import".
	Storage, ImportStorage string
	// KeepImage leaves the image file in the import storage.
	KeepImage bool

	// Image is the source, and Identity says in few words what it is: the same
	// identity means the same content. It is no size and no checksum of what is
	// upstream, which may change without the template being another one.
	Image    ImageSource
	Identity string
	// Labels are kept in the template's mark and answered by Read.
	Labels map[string]string
	// DiskGiB is the size of the boot disk; zero leaves it as the image has it.
	DiskGiB int
	// BIOS is "ovmf" or "seabios".
	BIOS string

	TemplateSettings
}

// TemplateSettings are what can be changed on a finished template.
type TemplateSettings struct {
	Name        string
	Description string
	// Tags are a set; Proxmox VE keeps them in lower case and sorted.
	Tags []string
	// CPUType is "x86-64-v2-AES", "host" and so on.
	CPUType   string
	Cores     int
	MemoryMiB int
	// Agent says that the guest has a QEMU guest agent.
	Agent bool
	// Bridge of the first network device; empty means that there is none.
	Bridge string
	// VLAN tag of the first network device; zero means none.
	VLAN int
}

// Template is a template as it was found.
type Template struct {
	Node string
	VMID int
	// UUID is the SMBIOS UUID, which nothing but the making of a VM changes.
	UUID string
	// Instance is the owner's UUID from the mark; empty where there is no mark.
	Instance string
	// Finished says that it is a template on base volumes, and complete.
	Finished bool
	// Storage holds the boot disk.
	Storage string
	// ImportStorage is where the image file was brought to; empty where the mark
	// is missing.
	ImportStorage string
	BIOS          string
	Labels        map[string]string
	TemplateSettings

	mark mark
	// digest guards a change against others'.
	digest string
	// protected says that Proxmox VE refuses to delete it.
	protected bool
	// converted says that the template flag is set.
	converted bool
	// volumes are the disks' volume ids by device.
	volumes map[string]string
	// diskBytes is the boot disk's size as far as the configuration says it.
	diskBytes int64
	macs      map[string]string
}

// key identifies content and place: an unfinished template with the same key is
// the same piece of work.
func (s TemplateSpec) key() string {
	text, err := json.Marshal([]any{s.Identity, s.Node, s.VMID, s.Storage, s.Name, s.DiskGiB, s.BIOS})
	if err != nil { // strings and numbers always marshal
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

var unsafeInFile = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// imageFile is the name of the image file, in the form that Proxmox VE would
// bring it into anyway. It is derived from the template, so that nobody else's
// file is ever taken or removed.
func (s TemplateSpec) imageFile() string {
	return "capi-" + unsafeInFile.ReplaceAllString(s.Name, "_") + "-" + s.key() + ".qcow2"
}

var (
	dnsName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	tagName = regexp.MustCompile(`^[a-z0-9_][a-z0-9_+.-]*$`)
)

// CheckName refuses what Proxmox VE does not take as a VM's name.
func CheckName(name string) error {
	if !dnsName.MatchString(name) {
		return fmt.Errorf("%q is not a DNS name, which a VM's name must be", name)
	}
	return nil
}

// CheckTag refuses what Proxmox VE does not take as a tag. Upper case is
// accepted by it and made lower case, but refused here: the tag would not read
// back as it was written.
func CheckTag(tag string) error {
	if !tagName.MatchString(tag) {
		return fmt.Errorf("%q is not a tag: lower-case letters, digits and _ - + . are allowed", tag)
	}
	return nil
}

// normalTags answers tags as Proxmox VE keeps them.
func normalTags(tags []string) []string {
	out := make([]string, 0, len(tags))
	for _, tag := range tags {
		if tag = strings.ToLower(strings.TrimSpace(tag)); tag != "" {
			out = append(out, tag)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func splitTags(text string) []string {
	return normalTags(strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == ',' || r == ' ' }))
}

// settings answers the configuration for what can be changed later. mac, when
// not empty, keeps the first network device's address.
func (t TemplateSettings) config(m mark, mac string) map[string]string {
	agent := "0"
	if t.Agent {
		agent = "enabled=1"
	}
	model := "virtio"
	if mac != "" {
		model += "=" + mac
	}
	network := ""
	if t.Bridge != "" {
		network = model + ",bridge=" + t.Bridge
		if t.VLAN != 0 {
			network += ",tag=" + strconv.Itoa(t.VLAN)
		}
	}
	return map[string]string{
		"name":        t.Name,
		"description": m.with(t.Description, "\n\n"),
		"tags":        strings.Join(normalTags(t.Tags), ";"),
		"cpu":         t.CPUType,
		"cores":       strconv.Itoa(t.Cores),
		"memory":      strconv.Itoa(t.MemoryMiB),
		"agent":       agent,
		"net0":        network,
	}
}

// create answers the parameters of the call that makes the VM out of an image
// file. The mark is in it, so that there is no moment at which the VM is there
// without.
func (s TemplateSpec) create(id int, image string, m mark) params {
	body := params{
		"vmid":    id,
		"ostype":  "l26",
		"scsihw":  "virtio-scsi-pci",
		"scsi0":   s.Storage + ":0,import-from=" + image + ",discard=on,ssd=1",
		"boot":    "order=scsi0",
		"sockets": 1,
		"serial0": "socket",
		"bios":    s.BIOS,
	}
	if s.BIOS == "ovmf" {
		body["machine"] = "q35"
		// No keys enrolled: Talos' plain images are not signed for Secure Boot.
		body["efidisk0"] = s.Storage + ":1,efitype=4m,pre-enrolled-keys=0"
	}
	for name, value := range s.config(m, "") {
		if value != "" {
			body[name] = value
		}
	}
	return body
}
