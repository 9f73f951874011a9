// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
)

// storageInfo is one entry of a node's storages.
type storageInfo struct {
	Name    string `json:"storage"`
	Type    string `json:"type"`
	Content string `json:"content"`
	Active  int    `json:"active"`
	Enabled int    `json:"enabled"`
}

func (s storageInfo) holds(content string) bool {
	return slices.Contains(strings.Split(s.Content, ","), content)
}

func (c *Client) storages(ctx context.Context, node string) ([]storageInfo, error) {
	var list []storageInfo
	if err := c.get(ctx, "/nodes/"+node+"/storage", nil, &list); err != nil {
		return nil, fmt.Errorf("listing the storages of node %s: %w", node, err)
	}
	slices.SortFunc(list, func(a, b storageInfo) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// chooseStorages checks the target and answers the import storage: the wished
// one, else the node's first with content "import".
func (c *Client) chooseStorages(ctx context.Context, s TemplateSpec) (target, importing storageInfo, err error) {
	list, err := c.storages(ctx, s.Node)
	if err != nil {
		return target, importing, err
	}
	if target, err = usable(list, s.Node, s.Storage, "images"); err != nil {
		return target, importing, err
	}
	if s.ImportStorage != "" {
		importing, err = usable(list, s.Node, s.ImportStorage, "import")
		return target, importing, err
	}
	for _, entry := range list {
		if entry.holds("import") && entry.Active == 1 && entry.Enabled == 1 && entry.Type != "esxi" {
			return target, entry, nil
		}
	}
	return target, importing, fmt.Errorf("node %s has no active storage with content \"import\" that %s may see. "+
		"To allow it on a directory storage, add import to its list of content, for example: "+
		"pvesm set local --content iso,vztmpl,backup,import", s.Node, c.Identity())
}

func usable(list []storageInfo, node, name, content string) (storageInfo, error) {
	i := slices.IndexFunc(list, func(s storageInfo) bool { return s.Name == name })
	switch {
	case i < 0:
		names := make([]string, 0, len(list))
		for _, s := range list {
			names = append(names, s.Name)
		}
		return storageInfo{}, fmt.Errorf("node %s has no storage %q, or it may not be seen; there is: %s", node, name, strings.Join(names, ", "))
	case list[i].Enabled != 1 || list[i].Active != 1:
		return storageInfo{}, fmt.Errorf("storage %q is not active on node %s", name, node)
	case !list[i].holds(content):
		return storageInfo{}, fmt.Errorf("storage %q is not configured for content %q (it has %s). To allow it, where its type can: pvesm set %s --content %s,%s",
			name, content, list[i].Content, name, list[i].Content, content)
	}
	return list[i], nil
}

// imageVolume is the volume id of a template's image file.
func imageVolume(storage, file string) string { return storage + ":import/" + file }

// imageSize answers the length of an image file in bytes. ok is false where
// there is no such file.
func (c *Client) imageSize(ctx context.Context, node, volume string) (size int64, ok bool, err error) {
	storage, _, _ := strings.Cut(volume, ":")
	var list []struct {
		VolID string `json:"volid"`
		Size  int64  `json:"size"`
	}
	if err := c.get(ctx, "/nodes/"+node+"/storage/"+storage+"/content", params{"content": "import"}, &list); err != nil {
		return 0, false, fmt.Errorf("listing the image files in storage %s on node %s: %w", storage, node, err)
	}
	for _, entry := range list {
		if entry.VolID == volume {
			return entry.Size, true, nil
		}
	}
	return 0, false, nil
}

// removeVolume deletes an image file; one that is not there is fine.
func (c *Client) removeVolume(ctx context.Context, node, volume string) error {
	_, ok, err := c.imageSize(ctx, node, volume)
	if err != nil || !ok {
		return err
	}
	storage, _, _ := strings.Cut(volume, ":")
	var upid string
	err = c.remove(ctx, "/nodes/"+node+"/storage/"+storage+"/content/"+volume, nil, &upid)
	if err == nil {
		err = c.wait(ctx, upid)
	}
	if err == nil || missing(err) {
		return nil
	}
	// A repeated deletion whose first answer got lost finds no file.
	if _, there, again := c.imageSize(ctx, node, volume); again == nil && !there {
		return nil
	}
	return fmt.Errorf("deleting the image file %s on node %s: %w", volume, node, err)
}

// bringImage has the image file in the import storage, whole: by download-url
// where the account may, else by way of this machine.
func (b *build) bringImage(ctx context.Context, storage, volume, file string) error {
	b.want = 0
	if size, err := b.spec.Image.Size(ctx); err == nil {
		b.want = size
	} else {
		b.report(ctx, "image", "the size of %s is not known here, a short download would go unnoticed: %v", b.spec.Image.URL(), err)
	}
	for range 2 {
		size, ok, err := b.c.imageSize(ctx, b.spec.Node, volume)
		if err != nil {
			return err
		}
		if ok && (b.want == 0 || size == b.want) {
			return nil
		}
		if ok {
			b.report(ctx, "image", "%s has %d of %d bytes; fetching it again", volume, size, b.want)
			if err := b.c.removeVolume(ctx, b.spec.Node, volume); err != nil {
				return fmt.Errorf("%s is not complete (%d of %d bytes): %w", volume, size, b.want, err)
			}
		}
		if err := b.transfer(ctx, storage, file); err != nil {
			return err
		}
	}
	size, ok, err := b.c.imageSize(ctx, b.spec.Node, volume)
	switch {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("the image file %s is not there after its transfer", volume)
	case b.want != 0 && size != b.want:
		return fmt.Errorf("the image file %s has %d of %d bytes after two transfers: something between %s and Proxmox VE cuts it short",
			volume, size, b.want, b.spec.Image.URL())
	}
	return nil
}

func (b *build) transfer(ctx context.Context, storage, file string) error {
	may, err := b.c.mayDownload(ctx, b.spec.Node)
	if err != nil {
		return err
	}
	if may {
		err := b.c.download(ctx, b.spec.Node, storage, file, b.spec.Image.URL(), func() {
			b.report(ctx, "image", "node %s downloads %s", b.spec.Node, b.spec.Image.URL())
		})
		if !errors.Is(err, ErrDenied) {
			return err
		}
	}
	b.report(ctx, "image", "%s may not let node %s download (Sys.AccessNetwork): the image goes by way of this machine", b.c.Identity(), b.spec.Node)
	return b.upload(ctx, storage, file)
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

func (c *Client) download(ctx context.Context, node, storage, file, url string, started func()) error {
	var upid string
	body := params{"content": "import", "filename": file, "url": url}
	if err := c.post(ctx, "/nodes/"+node+"/storage/"+storage+"/download-url", body, &upid); err != nil {
		return fmt.Errorf("letting node %s download %s: %w", node, url, err)
	}
	started()
	if err := c.wait(ctx, upid); err != nil {
		return fmt.Errorf("downloading %s on node %s to storage %s: %w. Where the node has no way to that address, let the provider fetch the image: "+
			"take Sys.AccessNetwork from its account", url, node, storage, err)
	}
	return nil
}

// upload fetches the image to a temporary file of this machine, since Proxmox
// VE wants the length beforehand, and sends it on.
func (b *build) upload(ctx context.Context, storage, file string) error {
	temporary, err := os.CreateTemp("", "capi-image-*")
	if err != nil {
		return fmt.Errorf("making a temporary file for the image: %w", err)
	}
	// Where the system allows it the file loses its name right away, so that not
	// even a killed provider leaves it.
	_ = os.Remove(temporary.Name())
	defer func() {
		_ = temporary.Close()
		_ = os.Remove(temporary.Name())
	}()
	size, err := b.spec.Image.Download(ctx, temporary)
	if err != nil {
		return err
	}
	if b.want != 0 && size != b.want {
		return fmt.Errorf("downloading %s: got %d of %d bytes", b.spec.Image.URL(), size, b.want)
	}
	b.want = size
	if _, err := temporary.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("reading the temporary file of the image: %w", err)
	}
	b.report(ctx, "image", "uploading %d bytes to storage %s on node %s", size, storage, b.spec.Node)
	return b.c.uploadFile(ctx, b.spec.Node, storage, file, temporary, size)
}

// boundTransport gives requests a context. go-proxmox v0.9.0's UploadReader
// takes none.
type boundTransport struct {
	ctx  context.Context //nolint:containedctx // lives as long as one upload
	base http.RoundTripper
}

func (t boundTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.base.RoundTrip(req.WithContext(t.ctx))
}

func (c *Client) uploadFile(ctx context.Context, node, storage, file string, content io.Reader, size int64) error {
	api := c.newAPI(boundTransport{ctx: ctx, base: c.transport})
	if c.config.TokenID == "" {
		if err := api.CreateSession(ctx); err != nil {
			return explain(err, c)
		}
	}
	var upid string
	err := api.UploadReader("/nodes/"+node+"/storage/"+storage+"/upload", map[string]string{"content": "import"}, file, content, size, &upid)
	if err == nil {
		err = c.wait(ctx, upid)
	} else {
		err = explain(err, c)
	}
	if err != nil {
		return fmt.Errorf("uploading %s to storage %s on node %s: %w", file, storage, node, err)
	}
	return nil
}
