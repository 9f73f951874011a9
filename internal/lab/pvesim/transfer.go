// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"bufio"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime/multipart"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

var checksumNames = []string{"md5", "sha1", "sha224", "sha256", "sha384", "sha512"}

var checksums = map[string]func() hash.Hash{
	"md5": md5.New, "sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
}

// mayDownload is the check of calls that make a node open a connection.
func mayDownload(storage string) check {
	return func(c *call) error {
		if storage != "" {
			if err := c.demand(c.who, c.expand("/storage/"+storage), "Datastore.AllocateTemplate"); err != nil {
				return err
			}
		}
		if !c.release.atLeast(8, 2) { // older releases do not know Sys.AccessNetwork
			return perm("/", "Sys.Audit", "Sys.Modify")(c)
		}
		return anyOf(perm("/nodes/{node}", "Sys.AccessNetwork"), perm("/", "Sys.Audit", "Sys.Modify"))(c)
	}
}

// httpClient is what a node fetches with.
func (s *Simulator) httpClient(verify bool) *http.Client {
	transport := s.opts.HTTPTransport
	if transport == nil {
		transport = &http.Transport{}
	}
	transport = transport.Clone()
	transport.DisableKeepAlives = true
	transport.TLSClientConfig = &tls.Config{RootCAs: s.opts.TrustedCAs, InsecureSkipVerify: !verify, MinVersion: tls.VersionTLS12}
	return &http.Client{Transport: transport}
}

// queryURL asks a server about a file, from the node.
func queryURL(c *call) (any, error) {
	req, err := http.NewRequestWithContext(c.request.Context(), http.MethodHead, c.str("url"), nil)
	if err != nil {
		return nil, invalid("url", "value does not match the regex pattern")
	}
	req.Header.Set("User-Agent", "Proxmox VE")
	resp, err := c.httpClient(c.boolean("verify-certificates", true)).Do(req)
	if err != nil {
		return nil, die("invalid server response: '500 Can't connect to %s'", req.URL.Host)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, die("invalid server response: '%s'", resp.Status)
	}
	out := map[string]any{"filename": path.Base(resp.Request.URL.Path)}
	if resp.ContentLength >= 0 {
		out["size"] = resp.ContentLength
	}
	if m := resp.Header.Get("Content-Type"); m != "" {
		out["mimetype"] = m
	}
	return out, nil
}

// compressions are what a release unpacks.
func (r release) compressions() []string {
	list := []string{"gz", "lzo", "zst"}
	if r.atLeast(8, 3) {
		list = append(list, "bz2")
	}
	return list
}

func downloadURL(c *call) (any, error) {
	if list := c.release.compressions(); c.has("compression") && !slices.Contains(list, c.str("compression")) {
		return nil, invalid("compression", "value '%s' does not have a value in the enumeration '%s'", c.str("compression"), strings.Join(list, ", "))
	}
	content := c.str("content")
	st, name, err := c.uploadTarget(content, c.str("filename"))
	if err != nil {
		return nil, err
	}
	job := &download{
		url: c.str("url"), node: c.str("node"), content: content, name: name, storage: st.ID, verify: c.boolean("verify-certificates", true),
		algorithm: c.str("checksum-algorithm"), checksum: strings.ToLower(c.str("checksum")), compression: c.str("compression"),
	}
	return c.fork(job.node, "download", strings.TrimPrefix(name, content+"/"), c.who, c.opts.Timing.Download, job.run), nil
}

// download is the worker of download-url.
type download struct {
	url, node, content, name, storage string
	verify                            bool
	algorithm, checksum, compression  string
}

func (d *download) run(w *worker) error {
	if d.compression != "" && d.content != "iso" {
		return errors.New("decompression not supported for " + d.content)
	}
	done, err := d.exists(w)
	if done || err != nil {
		return err
	}
	w.logf("downloading %s to %s:%s", d.url, d.storage, d.name)
	req, err := http.NewRequestWithContext(w.ctx, http.MethodGet, d.url, nil)
	if err != nil {
		return fmt.Errorf("download failed: %w", err)
	}
	req.Header.Set("User-Agent", "Wget/1.21.3")
	resp, err := w.httpClient(d.verify).Do(req)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return context.Canceled
		}
		w.logf("%v", err)
		return errors.New("download failed: wget: unable to connect")
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		w.logf("ERROR %s", resp.Status)
		return errors.New("download failed: wget: server returned error: HTTP/1.1 " + resp.Status)
	}
	return d.store(w, resp.Body)
}

// exists answers whether the file is there already in the form wanted; another
// file of the name is an error.
func (d *download) exists(w *worker) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.findVolume(d.node, d.storage+":"+d.name)
	if v == nil {
		return false, nil
	}
	where := w.state.Storages[d.storage].path(v)
	if d.checksum == "" {
		return false, fmt.Errorf("refusing to override existing file '%s'", where)
	}
	got, err := w.blobs.sum(v.Blob, d.algorithm)
	if err != nil {
		return false, err
	}
	if got != d.checksum {
		return false, fmt.Errorf("checksum mismatch: got '%s' != expect '%s', aborting", got, d.checksum)
	}
	return true, nil
}

func (d *download) store(w *worker, body io.Reader) error {
	w.mu.Lock()
	if n := w.shortDownload; n > 0 {
		body, w.shortDownload = io.LimitReader(body, n), 0
	}
	w.mu.Unlock()
	blob, size, err := w.blobs.put(body)
	if err != nil {
		return fmt.Errorf("download failed: %w", err)
	}
	if d.checksum != "" {
		got, err := w.blobs.sum(blob, d.algorithm)
		if err != nil {
			return err
		}
		if got != d.checksum {
			return fmt.Errorf("checksum mismatch: got '%s' != expect '%s', aborting", got, d.checksum)
		}
	}
	if d.compression != "" {
		if blob, size, err = w.unpack(blob, d.compression); err != nil {
			return fmt.Errorf("decompression failed: %w", err)
		}
	}
	v := &volume{Name: d.name, Content: d.content, Format: fileFormat(d.name), Size: size, Blob: blob}
	if err := w.examine(v); err != nil {
		return err
	}
	return w.locked(func() error {
		st, err := w.storage(d.storage)
		if err != nil {
			return err
		}
		w.addVolume(st, d.node, v)
		return nil
	})
}

// unpack stores the unpacked content of a stored file. The zstd tool of a node
// recognises xz as well.
func (s *Simulator) unpack(blob, compression string) (name string, size int64, err error) {
	f, err := s.blobs.open(blob)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = f.Close() }()
	head := bufio.NewReader(f)
	var r io.Reader
	switch magic, _ := head.Peek(6); {
	case compression == "zst" && string(magic) == "\xfd7zXZ\x00":
		r, err = xz.NewReader(head)
	case compression == "zst":
		var d *zstd.Decoder
		if d, err = zstd.NewReader(head); err == nil {
			defer d.Close()
			r = d
		}
	case compression == "gz":
		r, err = gzip.NewReader(head)
	case compression == "bz2":
		r = bzip2.NewReader(head)
	default:
		err = fmt.Errorf("unpacking %s is not simulated", compression)
	}
	if err != nil {
		return "", 0, err
	}
	return s.blobs.put(r)
}

// examine looks into a file to import and notes what is on it.
func (s *Simulator) examine(v *volume) error {
	if v.Content != "import" {
		return nil
	}
	got, err := s.blobs.inspect(v.Blob, v.Format)
	if err != nil {
		return fmt.Errorf("%s: %w", v.Name, err)
	}
	v.Image = got.identity
	return nil
}

// sum answers the checksum of a stored file.
func (b *blobs) sum(name, algorithm string) (string, error) {
	f, err := b.open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := checksums[algorithm]()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// uploadParts is the order that the parts of the form must have.
var uploadParts = []string{"content", "checksum-algorithm", "checksum", "filename"}

// upload takes a file from the body of the request. Everything behind the file
// is ignored, as pveproxy does.
func upload(c *call) (any, error) {
	if c.request.ContentLength < 0 {
		return nil, notImplemented("chunked transfer encoding not supported")
	}
	form, err := c.request.MultipartReader()
	if err != nil {
		return nil, notImplemented("for data too large")
	}
	blob, size, err := c.readUpload(form)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.save()
	if err := c.endpoint.schema.check(c.in); err != nil {
		return nil, err
	}
	content, node := c.str("content"), c.str("node")
	st, name, err := c.uploadTarget(content, c.str("filename"))
	if err != nil {
		return nil, err
	}
	algorithm, want := c.str("checksum-algorithm"), strings.ToLower(c.str("checksum"))
	return c.fork(node, "imgcopy", "", c.who, c.opts.Timing.Upload, func(w *worker) error {
		if want != "" {
			if got, err := w.blobs.sum(blob, algorithm); err != nil || got != want {
				return fmt.Errorf("checksum mismatch: got '%s' != expect '%s'", got, want)
			}
		}
		v := &volume{Name: name, Content: content, Format: fileFormat(name), Size: size, Blob: blob}
		if err := w.examine(v); err != nil {
			return err
		}
		return w.locked(func() error {
			w.addVolume(st, node, v)
			return nil
		})
	}), nil
}

// readUpload reads the fields into the call's parameters and stores the file.
func (c *call) readUpload(form *multipart.Reader) (blob string, size int64, err error) {
	next := 0
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return "", 0, nil
		}
		if err != nil {
			return "", 0, notImplemented("unable to parse upload: %v", err)
		}
		at := slices.Index(uploadParts[next:], part.FormName())
		if at < 0 {
			return "", 0, notImplemented("unexpected form field '%s'", part.FormName())
		}
		next += at + 1
		if part.FormName() == "filename" {
			c.in["filename"] = []string{part.FileName()}
			blob, size, err := c.blobs.put(part)
			if err != nil {
				return "", 0, die("storing the upload: %v", err)
			}
			return blob, size, nil
		}
		value, err := io.ReadAll(io.LimitReader(part, 4096))
		if err != nil {
			return "", 0, die("reading the upload: %v", err)
		}
		c.in[part.FormName()] = []string{string(value)}
	}
}
