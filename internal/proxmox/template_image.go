// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
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
	Shared  int    `json:"shared"`
	// Avail is the room in bytes; zero where it is not told.
	Avail int64 `json:"avail"`
}

func (s storageInfo) usable() bool { return s.Active == 1 && s.Enabled == 1 }

// files says whether files can be put into the storage: an ESXi host is
// listed as one with content "import", and can only be read.
func (s storageInfo) files() bool { return s.Type != "esxi" }

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

func usable(list []storageInfo, node, name, content string) (storageInfo, error) {
	i := slices.IndexFunc(list, func(s storageInfo) bool { return s.Name == name })
	switch {
	case i < 0:
		names := make([]string, 0, len(list))
		for _, s := range list {
			names = append(names, s.Name)
		}
		return storageInfo{}, fmt.Errorf("node %s has no storage %q, or it may not be seen; there is: %s", node, name, strings.Join(names, ", "))
	case !list[i].usable():
		return storageInfo{}, fmt.Errorf("storage %q is not active on node %s", name, node)
	case !list[i].holds(content):
		return storageInfo{}, fmt.Errorf("storage %q is not configured for content %q (it has %s). To allow it, where its type can: pvesm set %s --content %s,%s",
			name, content, list[i].Content, name, list[i].Content, content)
	}
	return list[i], nil
}

// imageSize answers the length of an image file in bytes. ok is false where
// there is no such file.
func (c *Client) imageSize(ctx context.Context, node, volume string) (size int64, ok bool, err error) {
	storage, content := splitVolume(volume)
	var list []struct {
		VolID string `json:"volid"`
		Size  int64  `json:"size"`
	}
	if err := c.get(ctx, "/nodes/"+node+"/storage/"+storage+"/content", params{"content": content}, &list); err != nil {
		return 0, false, fmt.Errorf("listing the image files in storage %s on node %s: %w", storage, node, err)
	}
	for _, entry := range list {
		if entry.VolID == volume {
			return entry.Size, true, nil
		}
	}
	return 0, false, nil
}

// imagePath answers where an image file lies on its node.
func (c *Client) imagePath(ctx context.Context, node, volume string) (string, error) {
	storage, _ := splitVolume(volume)
	var info struct {
		Path string `json:"path"`
	}
	if err := c.get(ctx, "/nodes/"+node+"/storage/"+storage+"/content/"+url.PathEscape(volume), nil, &info); err != nil {
		return "", fmt.Errorf("asking for the path of %s on node %s: %w", volume, node, err)
	}
	if !strings.HasPrefix(info.Path, "/") {
		return "", fmt.Errorf("asking for the path of %s on node %s: the answer %q is no path", volume, node, info.Path)
	}
	return info.Path, nil
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
// where that was chosen, else by way of this machine.
func (b *build) bringImage(ctx context.Context) error {
	volume := b.transfer.volume(b.spec)
	b.measure(ctx)
	for attempt := range 2 {
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
			b.transfer.storage.Avail += size
		}
		if attempt == 0 { // a file that an earlier run has brought needs no room
			if err := b.checkRoom(); err != nil {
				return err
			}
		}
		if err := b.bring(ctx); err != nil {
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
			volume, size, b.want, b.sourceName())
	}
	return nil
}

// measure learns how long the image is as it is served, and, where it is not
// compressed, as the file that must arrive.
func (b *build) measure(ctx context.Context) {
	size, err := b.spec.Image.Size(ctx)
	if err != nil {
		b.report(ctx, "image", "the size of %s is not known here, a short download would go unnoticed: %v", b.sourceName(), err)
		return
	}
	b.served = size
	if b.spec.Image.Compression() == "" {
		b.want = size
	}
}

// checkRoom refuses an image for which the import storage has no room.
func (b *build) checkRoom() error {
	storage := b.transfer.storage
	if storage.Avail > 0 && b.served > storage.Avail {
		return fmt.Errorf("storage %s on node %s has %s free, and the image %s needs at least %s: make room, or name another import_storage",
			storage.Name, b.spec.Node, bytesText(storage.Avail), b.sourceName(), bytesText(b.served))
	}
	return nil
}

// bring transfers the image once. A node that cannot download it, for which
// there are many reasons, is helped by an upload.
func (b *build) bring(ctx context.Context) error {
	if b.transfer.upload() {
		return b.upload(ctx)
	}
	err := b.download(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if !errors.Is(err, ErrDenied) && (!errors.Is(err, errDownload) || strings.Contains(err.Error(), "checksum mismatch")) {
		return err
	}
	b.transfer = b.transfer.uploading(fmt.Sprintf("node %s could not download it", b.spec.Node))
	b.report(ctx, "image", "%v; the image goes by way of this machine instead", err)
	if uploading := b.upload(ctx); uploading != nil {
		return fmt.Errorf("%w; before that, %w", uploading, err)
	}
	return nil
}

// errDownload marks the failure of a node's own download.
var errDownload = errors.New("the node's download failed")

// download has the node fetch the image.
func (b *build) download(ctx context.Context) error {
	node, image := b.spec.Node, b.spec.Image
	body := params{"content": b.transfer.content(), "filename": b.transfer.file(b.spec), "url": image.URL()}
	if algorithm, sum := image.Checksum(); sum != "" {
		body["checksum-algorithm"], body["checksum"] = algorithm, sum
	}
	if compression := image.Compression(); compression != "" {
		body["compression"] = compression
	}
	var upid string
	if err := b.c.post(ctx, "/nodes/"+node+"/storage/"+b.transfer.storage.Name+"/download-url", body, &upid); err != nil {
		return fmt.Errorf("letting node %s download %s: %w", node, b.sourceName(), err)
	}
	b.report(ctx, "image", "node %s downloads %s (%s)", node, b.sourceName(), b.transfer.Reason)
	if err := b.c.wait(ctx, upid); err != nil {
		return fmt.Errorf("%w: downloading %s on node %s to storage %s: %w", errDownload, b.sourceName(), node, b.transfer.storage.Name, err)
	}
	return nil
}

// fetches is how often an image is fetched that does not arrive whole.
const fetches = 3

// upload fetches the image and sends it on.
func (b *build) upload(ctx context.Context) error {
	b.report(ctx, "image", "the image goes by way of this machine: %s", b.transfer.Reason)
	var content fetched
	for attempt := 1; ; attempt++ {
		var err error
		if content, err = b.fetch(ctx); err == nil {
			break
		}
		if attempt == fetches || ctx.Err() != nil || !isTransient(err) {
			return err
		}
		b.report(ctx, "image", "%v; fetching it again", err)
		if !sleep(ctx, b.c.config.PollInterval) {
			return err
		}
	}
	defer func() { _ = content.Close() }()
	b.want = content.size
	return b.c.uploadFile(ctx, b, content)
}

// isTransient says whether fetching again may help: the connection failed, or
// ended early.
func isTransient(err error) bool {
	var connection *net.OpError
	var request *url.Error
	return errors.As(err, &connection) || errors.As(err, &request) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
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

// uploadFile sends an image's content to the import storage.
func (c *Client) uploadFile(ctx context.Context, b *build, content fetched) error {
	node, storage, file := b.spec.Node, b.transfer.storage.Name, b.transfer.file(b.spec)
	say := func(done string) {
		b.report(ctx, "image", "uploading to storage %s on node %s: %s", storage, node, done)
	}
	var upid string
	// An upload overwrites what there is, so that it can be repeated.
	err := c.retry(ctx, true, func() error {
		if _, err := content.Seek(0, io.SeekStart); err != nil {
			return err
		}
		api := c.newAPI(boundTransport{ctx: ctx, base: c.transport})
		metered := io.TeeReader(content, &meter{total: content.size, say: say})
		return api.UploadReader("/nodes/"+node+"/storage/"+storage+"/upload", map[string]string{"content": b.transfer.content()}, file, metered, content.size, &upid)
	})
	if err == nil {
		err = c.wait(ctx, upid)
	}
	if err != nil {
		return fmt.Errorf("uploading %s to storage %s on node %s, for which /var/tmp of the node that answers must have room for it (%s): %w",
			file, storage, node, bytesText(content.size), err)
	}
	return nil
}
