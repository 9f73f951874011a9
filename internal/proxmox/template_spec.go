// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"regexp"
)

// ImageSource is a disk image that a template is made of.
type ImageSource interface {
	// URL is where the image is served; empty for a file of this machine.
	URL() string
	// Format of the image once it is unpacked: qcow2, raw or vmdk.
	Format() string
	// Compression is gz, zst, xz or bz2; empty means none.
	Compression() string
	// Checksum of the file as it is served, and its algorithm as Proxmox VE names
	// it; empty where none is known.
	Checksum() (algorithm, sum string)
	// Prepare makes the image available. It is idempotent.
	Prepare(ctx context.Context) error
	// Size answers the length in bytes of the file as it is served.
	Size(ctx context.Context) (int64, error)
	// Download writes the file as it is served to out and answers its length in
	// bytes. A truncated transfer is an error.
	Download(ctx context.Context, out io.Writer) (int64, error)
}

// TemplateSpec is what a template is to be.
type TemplateSpec struct {
	// Node is where the template is made.
	Node string
	// VMID is the wished id, or with LastVMID the first of a range of which the
	// lowest free one is taken; zero means the next free one of the cluster.
	VMID, LastVMID int
	// Storage takes the disks, ImportStorage the image file until it is
	// imported; empty means the first storage of the node that fits.
	Storage, ImportStorage string
	// KeepImage leaves the image file in the import storage.
	KeepImage bool
	// Upload has the image go by way of this machine even where the node may
	// download it.
	Upload bool

	// Image is the source, and Identity says in few words what it is: the same
	// identity means the same content. It is no size and no checksum of what is
	// upstream, which may change without the template being another one.
	Image    ImageSource
	Identity string
	// Family is what the templates that follow one another have in common; see
	// [Client.RetireTemplate]. May be empty.
	Family string
	// Labels are kept in the template's mark and answered by Read.
	Labels map[string]string
	// Instance, where it is set, is written into the mark of a template whose
	// notes have lost it, by [Client.UpdateTemplate]: whoever calls it has proven
	// by the UUID that the template is its own.
	Instance string

	TemplateHardware
	TemplateSettings
}

// TemplateHardware is what a template has for good.
type TemplateHardware struct {
	// DiskGiB is the size of the boot disk; zero leaves it as the image has it.
	DiskGiB int
	Disk    DiskOptions
	// BIOS is "ovmf" or "seabios".
	BIOS string
	// PreEnrolledKeys puts the keys of the distributions and of Microsoft into
	// the EFI disk, which turns Secure Boot on with them.
	PreEnrolledKeys bool
	// TPM gives the VM a TPM 2.0.
	TPM bool
	// CloudInitStorage takes Proxmox VE's own cloud-init drive; empty means that
	// there is none. Cluster API's provider attaches one of its own.
	CloudInitStorage string
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
	// Transfer is how the image came here; zero where this run did not bring it.
	Transfer Transfer
	Labels   map[string]string
	TemplateHardware
	TemplateSettings

	mark mark
	// digest guards a change against others'.
	digest string
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
	text, err := json.Marshal([]any{s.Identity, s.Node, s.VMID, s.LastVMID, s.Storage, s.Name, s.TemplateHardware})
	if err != nil { // strings, numbers and booleans always marshal
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

var unsafeInFile = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// imageFile is the name of the image file, in the form that Proxmox VE would
// bring it into anyway. It is derived from the template, so that nobody else's
// file is ever taken or removed.
func (s TemplateSpec) imageFile(ending string) string {
	return "capi-" + unsafeInFile.ReplaceAllString(s.Name, "_") + "-" + s.key() + "." + ending
}

// create answers the parameters of the call that makes the VM out of an image:
// a volume id, or the path of a file on the node. The mark is in it, so that
// there is no moment at which the VM is there without.
func (s TemplateSpec) create(id int, image string, m mark) params {
	body := params{
		"vmid":  id,
		"scsi0": s.Storage + ":0,import-from=" + image + s.Disk.option(),
		// Named outright: Cluster API's provider appends its cloud-init drive to it.
		"boot": "order=scsi0",
		"bios": s.BIOS,
	}
	if s.BIOS == "ovmf" {
		body["efidisk0"] = s.Storage + ":1,efitype=4m,pre-enrolled-keys=" + flag(s.PreEnrolledKeys)
	}
	if s.TPM {
		body["tpmstate0"] = s.Storage + ":1,version=v2.0"
	}
	if s.CloudInitStorage != "" {
		body["ide2"] = s.CloudInitStorage + ":cloudinit"
	}
	if s.Pool != "" {
		body["pool"] = s.Pool
	}
	for name, value := range s.config(m, nil) {
		if value != "" {
			body[name] = value
		}
	}
	return body
}
