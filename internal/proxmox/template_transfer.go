// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// The ways on which an image comes to Proxmox VE.
const (
	// TransferDownload: the node downloads into content "import".
	TransferDownload = "download"
	// TransferUpload: by way of this machine into content "import".
	TransferUpload = "upload"
	// TransferDownloadISO and TransferUploadISO: the same into content "iso",
	// from where the disk is imported by its path, which Proxmox VE allows to
	// root@pam with a password alone.
	TransferDownloadISO = "download_iso"
	TransferUploadISO   = "upload_iso"
)

// Transfer is the way on which an image comes to Proxmox VE.
type Transfer struct {
	// Method is one of the four.
	Method string
	// Reason says in a sentence why this one.
	Reason string

	storage storageInfo
}

// iso says whether the file lies among the ISO images.
func (t Transfer) iso() bool { return t.Method == TransferDownloadISO || t.Method == TransferUploadISO }

// upload says whether the image goes by way of this machine.
func (t Transfer) upload() bool { return t.Method == TransferUpload || t.Method == TransferUploadISO }

// content is what Proxmox VE calls the kind of file.
func (t Transfer) content() string {
	if t.iso() {
		return "iso"
	}
	return "import"
}

// file is the name of a template's image file.
func (t Transfer) file(s TemplateSpec) string {
	if t.iso() {
		return s.imageFile("img")
	}
	return s.imageFile(s.Image.Format())
}

// volume is the volume id of a template's image file.
func (t Transfer) volume(s TemplateSpec) string {
	return t.storage.Name + ":" + t.content() + "/" + t.file(s)
}

// uploading is the same into the same storage by way of this machine.
func (t Transfer) uploading(reason string) Transfer {
	if t.iso() {
		t.Method = TransferUploadISO
	} else {
		t.Method = TransferUpload
	}
	t.Reason = reason
	return t
}

// oldest is the oldest release of Proxmox VE that templates are made on. Older
// ones get no corrections any more.
var oldest = Version{Major: 8, Minor: 1}

// importing is the first release that imports disk images, and not only .ova
// archives, from content "import", which needs no path (pve-storage 8.3.6).
var importing = Version{Major: 8, Minor: 4}

// rootLogin says whether whoever works is root@pam with a password: a token of
// root@pam is not root@pam to Proxmox VE.
func (c *Client) rootLogin() bool {
	return c.config.TokenID == "" && c.config.Username == "root@pam"
}

// chooseTransfer checks the target storage and chooses how the image comes
// there, out of release, login, storages, compression and privileges.
func (b *build) chooseTransfer(ctx context.Context, version Version) (Transfer, error) {
	if !version.AtLeast(oldest.Major, oldest.Minor) {
		return Transfer{}, fmt.Errorf("the Proxmox VE at %s is %s, and templates are made on %s and newer: upgrade it (the guide \"Upgrade from 7 to 8\" of Proxmox VE)",
			b.c.base, version, oldest)
	}
	list, err := b.c.storages(ctx, b.spec.Node)
	if err != nil {
		return Transfer{}, err
	}
	if _, err := usable(list, b.spec.Node, b.spec.Storage, "images"); err != nil {
		return Transfer{}, err
	}
	if cloudInit := b.spec.CloudInitStorage; cloudInit != "" {
		if _, err := usable(list, b.spec.Node, cloudInit, "images"); err != nil {
			return Transfer{}, err
		}
	}
	t := Transfer{}
	if version.AtLeast(importing.Major, importing.Minor) {
		if t.storage, err = importStorage(list, b.spec, "import"); err == nil {
			return b.chooseImport(ctx, version, t)
		}
		if !b.c.rootLogin() {
			return t, fmt.Errorf("%w, on which %s may use it. To have one on a directory storage, add import to its list of content, for example: "+
				"pvesm set local --content iso,vztmpl,backup,import", err, b.c.Identity())
		}
	} else if !b.c.rootLogin() {
		return t, fmt.Errorf("the Proxmox VE at %s is %s, which imports disk images from paths alone and allows that to no API token, not even one of root@pam: "+
			"upgrade it to %s or newer, or log in as root@pam with a password (username and password in the provider block)", b.c.base, version, importing)
	}
	if t.storage, err = importStorage(list, b.spec, "iso"); err != nil {
		return t, err
	}
	return b.chooseISO(version, t), nil
}

// chooseImport chooses between a download by the node and an upload where there
// is a storage with content "import".
func (b *build) chooseImport(ctx context.Context, version Version, t Transfer) (Transfer, error) {
	compression := b.spec.Image.Compression()
	switch {
	case b.spec.Image.URL() == "":
		return t.uploading("the image is a file of this machine"), nil
	case compression != "":
		return t.uploading("Proxmox VE does not unpack images that it imports, and this one is compressed (" + compression + ")"), nil
	case b.spec.Upload:
		return t.uploading("it was asked for"), nil
	}
	may, err := b.c.mayDownload(ctx, b.spec.Node)
	if err != nil {
		return t, err
	}
	if !may {
		return t.uploading(fmt.Sprintf("%s may not let node %s download (Sys.AccessNetwork on /nodes/%s)", b.c.Identity(), b.spec.Node, b.spec.Node)), nil
	}
	t.Method = TransferDownload
	t.Reason = fmt.Sprintf("Proxmox VE %s imports %s images, storage %s holds them, and %s may let node %s download",
		version, b.spec.Image.Format(), t.storage.Name, b.c.Identity(), b.spec.Node)
	return t, nil
}

// chooseISO is the same where the file must lie among the ISO images.
func (b *build) chooseISO(version Version, t Transfer) Transfer {
	t.Method = TransferDownloadISO
	compression := b.spec.Image.Compression()
	why := fmt.Sprintf("Proxmox VE %s imports disks from paths alone", version)
	if version.AtLeast(importing.Major, importing.Minor) {
		why = "no storage of the node holds content \"import\""
	}
	switch {
	case b.spec.Image.URL() == "":
		return t.uploading(why + ", and the image is a file of this machine")
	case b.spec.Upload:
		return t.uploading(why + ", and an upload was asked for")
	case compression == "xz", compression == "bz2" && !version.AtLeast(8, 3):
		return t.uploading(fmt.Sprintf("%s, and %s does not unpack %s", why, version, compression))
	}
	t.Reason = why + ", which root@pam with a password may"
	return t
}

// importStorage answers the storage for the image file: the wished one, else the
// node's first that holds this kind of content.
func importStorage(list []storageInfo, s TemplateSpec, content string) (storageInfo, error) {
	if s.ImportStorage != "" {
		return usable(list, s.Node, s.ImportStorage, content)
	}
	for _, entry := range list {
		if entry.holds(content) && entry.usable() && entry.files() {
			return entry, nil
		}
	}
	return storageInfo{}, fmt.Errorf("node %s has no active storage with content %q", s.Node, content)
}

// mayDownload says whether the account may let a node download: Sys.AccessNetwork
// on the node (from PVE 8.2), or Sys.Audit and Sys.Modify on /.
func (c *Client) mayDownload(ctx context.Context, node string) (bool, error) {
	lacking, err := c.lacks(ctx, "/nodes/"+node, "Sys.AccessNetwork")
	if err != nil || len(lacking) == 0 {
		return err == nil, err
	}
	lacking, err = c.lacks(ctx, "/", "Sys.Audit", "Sys.Modify")
	return err == nil && len(lacking) == 0, err
}

// splitVolume cuts a volume id into storage and kind of content.
func splitVolume(volume string) (storage, content string) {
	storage, rest, _ := strings.Cut(volume, ":")
	content, _, _ = strings.Cut(rest, "/")
	return storage, content
}

// NodesThatCannotClone answers the other nodes of the cluster on which machines
// cannot be cloned from a template whose disks are in a storage of this node:
// all of them where it is local, none where it is shared.
func (c *Client) NodesThatCannotClone(ctx context.Context, node, storage string) ([]string, error) {
	list, err := c.storages(ctx, node)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(s storageInfo) bool { return s.Name == storage })
	if i < 0 || list[i].Shared == 1 {
		return nil, nil
	}
	var nodes []struct {
		Node string `json:"node"`
	}
	if err := c.get(ctx, "/nodes", nil, &nodes); err != nil {
		return nil, fmt.Errorf("listing the nodes of the cluster: %w", err)
	}
	var others []string
	for _, n := range nodes {
		if n.Node != node {
			others = append(others, n.Node)
		}
	}
	slices.Sort(others)
	return others, nil
}
