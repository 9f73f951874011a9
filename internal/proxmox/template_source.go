// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"crypto/md5"  //nolint:gosec // a publisher's checksum is what it is
	"crypto/sha1" //nolint:gosec // a publisher's checksum is what it is
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ImageFormats are the forms of disk image that Proxmox VE imports, and
// ImageCompressions those in which this package can unpack them.
var (
	ImageFormats      = []string{"qcow2", "raw", "vmdk"}
	ImageCompressions = []string{"gz", "zst", "xz", "bz2"}
)

var hashes = map[string]func() hash.Hash{
	"md5": md5.New, "sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
}

// ImageOptions describe a disk image that is no Talos image.
type ImageOptions struct {
	// URL where the image is served, or File on this machine.
	URL, File string
	// Format and Compression; empty means that the name's ending tells.
	Format, Compression string
	// Checksum of the file as it is served, "sha256:<hexadecimal digits>"; may be empty.
	Checksum string
}

// plainImage is what images at a URL and files have in common.
type plainImage struct {
	format, compression string
	algorithm, sum      string
}

func (i plainImage) Format() string                    { return i.format }
func (i plainImage) Compression() string               { return i.compression }
func (i plainImage) Checksum() (algorithm, sum string) { return i.algorithm, i.sum }
func (i plainImage) identity(unknown string) string {
	if i.sum != "" {
		return i.algorithm + ":" + i.sum
	}
	return unknown
}

// ParseChecksum reads "sha256:<hexadecimal digits>" and the like.
func ParseChecksum(text string) (algorithm, sum string, err error) {
	algorithm, sum, ok := strings.Cut(strings.TrimSpace(text), ":")
	algorithm, sum = strings.ToLower(algorithm), strings.ToLower(sum)
	maker := hashes[algorithm]
	if !ok || maker == nil {
		return "", "", fmt.Errorf("the checksum %q is not of the form \"sha256:...\", with one of md5, sha1, sha224, sha256, sha384, sha512", text)
	}
	if raw, err := hex.DecodeString(sum); err != nil || len(raw) != maker().Size() {
		return "", "", fmt.Errorf("the checksum %q: %s has %d hexadecimal digits", text, algorithm, 2*maker().Size())
	}
	return algorithm, sum, nil
}

func (o ImageOptions) plain(name string) (plainImage, error) {
	image := plainImage{format: o.Format, compression: o.Compression}
	format, compression := endings(name)
	if image.compression == "" {
		image.compression = compression
	}
	if image.format == "" {
		image.format = format
	}
	if !slices.Contains(ImageFormats, image.format) {
		return image, fmt.Errorf("the name %q does not tell the format of the disk image: say which it is, one of %s (with qemu-img info, or file). "+
			"Archives such as .ova are not images: take the disk out of them", name, strings.Join(ImageFormats, ", "))
	}
	if image.compression != "" && !slices.Contains(ImageCompressions, image.compression) {
		return image, fmt.Errorf("images compressed as %q cannot be unpacked, only %s", image.compression, strings.Join(ImageCompressions, ", "))
	}
	if o.Checksum != "" {
		var err error
		if image.algorithm, image.sum, err = ParseChecksum(o.Checksum); err != nil {
			return image, err
		}
	}
	return image, nil
}

// endings reads format and compression off a name; both may be empty.
func endings(name string) (format, compression string) {
	name = strings.ToLower(name)
	for _, c := range ImageCompressions {
		if before, ok := strings.CutSuffix(name, "."+c); ok {
			name, compression = before, c
		}
	}
	for _, f := range ImageFormats {
		if strings.HasSuffix(name, "."+f) {
			format = f
		}
	}
	return format, compression
}

// RemoteImage is a disk image at a URL.
type RemoteImage struct {
	plainImage
	address string
	client  *http.Client
}

// NewRemoteImage answers the image at options.URL. Nothing is dialled.
func NewRemoteImage(options ImageOptions) (*RemoteImage, error) {
	u, err := url.Parse(options.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("the image's address %q is not of the form https://images.example/disk.qcow2", options.URL)
	}
	if u.User != nil {
		return nil, errors.New("the image's address holds a user name or password: it would be stored and logged in clear; serve the image without a login, or give it as a file")
	}
	plain, err := options.plain(path.Base(u.Path))
	if err != nil {
		return nil, err
	}
	return &RemoteImage{plainImage: plain, address: options.URL, client: &http.Client{Transport: imageTransport}}, nil
}

// imageTransport has no limit for a whole transfer, which takes as long as it
// takes, but one for a server that does not begin to answer.
var imageTransport = &http.Transport{
	Proxy:                 http.ProxyFromEnvironment,
	TLSHandshakeTimeout:   10 * time.Second,
	ResponseHeaderTimeout: time.Minute,
	IdleConnTimeout:       30 * time.Second,
	DisableCompression:    true, // the file as it lies on the server is wanted
	ForceAttemptHTTP2:     true,
}

// URL is the image's address.
func (i *RemoteImage) URL() string { return i.address }

// Identity is the checksum where there is one, else the address.
func (i *RemoteImage) Identity() string {
	sum := sha256.Sum256([]byte(i.address))
	return i.identity("url:" + hex.EncodeToString(sum[:8]))
}

// Prepare has nothing to do.
func (i *RemoteImage) Prepare(context.Context) error { return nil }

// Size asks the server.
func (i *RemoteImage) Size(ctx context.Context) (int64, error) {
	res, err := i.do(ctx, http.MethodHead)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.ContentLength <= 0 {
		return 0, fmt.Errorf("the server of %s does not tell its length", shown(i.address))
	}
	return res.ContentLength, nil
}

// Download writes the file as it is served to out.
func (i *RemoteImage) Download(ctx context.Context, out io.Writer) (int64, error) {
	res, err := i.do(ctx, http.MethodGet)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	n, err := io.Copy(out, res.Body)
	if err != nil {
		return n, fmt.Errorf("downloading %s: after %d bytes: %w", shown(i.address), n, err)
	}
	if res.ContentLength > 0 && n != res.ContentLength {
		return n, fmt.Errorf("downloading %s: got %d of %d bytes", shown(i.address), n, res.ContentLength)
	}
	return n, nil
}

func (i *RemoteImage) do(ctx context.Context, method string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, i.address, nil)
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", shown(i.address), err)
	}
	res, err := i.client.Do(req)
	if err != nil {
		var inner *url.Error // which repeats the address with its query
		if errors.As(err, &inner) {
			err = inner.Err
		}
		return nil, fmt.Errorf("asking for %s: %w", shown(i.address), err)
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close()
		return nil, fmt.Errorf("asking for %s: the server answers %s", shown(i.address), res.Status)
	}
	return res, nil
}

// shown is an address as it may be told: its query may hold a signature.
func shown(address string) string {
	before, _, _ := strings.Cut(address, "?")
	return before
}

// FileImage is a disk image in a file of this machine.
type FileImage struct {
	plainImage
	path string
}

// NewFileImage answers the image in options.File. The file is not opened.
func NewFileImage(options ImageOptions) (*FileImage, error) {
	plain, err := options.plain(filepath.Base(options.File))
	if err != nil {
		return nil, err
	}
	return &FileImage{plainImage: plain, path: options.File}, nil
}

// FileChecksum reads a file and answers its checksum as [ImageOptions] takes it.
func FileChecksum(name string) (string, error) {
	sum, _, err := hashFile(name, "sha256")
	if err != nil {
		return "", err
	}
	return "sha256:" + sum, nil
}

func hashFile(name, algorithm string) (sum string, size int64, err error) {
	f, err := os.Open(name) //nolint:gosec // the user's own file
	if err != nil {
		return "", 0, fmt.Errorf("reading the image file: %w", err)
	}
	defer func() { _ = f.Close() }()
	h := hashes[algorithm]()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, fmt.Errorf("reading the image file: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// URL is none.
func (i *FileImage) URL() string { return "" }

// Path of the file.
func (i *FileImage) Path() string { return i.path }

// Identity is the checksum, which a template of a file must have.
func (i *FileImage) Identity() string { return i.identity("file:" + i.path) }

// Prepare sees whether the file is there and not empty.
func (i *FileImage) Prepare(ctx context.Context) error {
	_, err := i.Size(ctx)
	return err
}

// Size of the file.
func (i *FileImage) Size(context.Context) (int64, error) {
	info, err := os.Stat(i.path)
	if err != nil {
		return 0, fmt.Errorf("reading the image file: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() == 0 {
		return 0, fmt.Errorf("the image file %s is empty, or no file", i.path)
	}
	return info.Size(), nil
}

// Download copies the file to out.
func (i *FileImage) Download(ctx context.Context, out io.Writer) (int64, error) {
	f, err := os.Open(i.path) //nolint:gosec // the user's own file
	if err != nil {
		return 0, fmt.Errorf("reading the image file: %w", err)
	}
	defer func() { _ = f.Close() }()
	n, err := io.Copy(out, boundReader{ctx, f})
	if err != nil {
		return n, fmt.Errorf("reading the image file: %w", err)
	}
	return n, nil
}

// boundReader ends with its context.
type boundReader struct {
	ctx context.Context //nolint:containedctx // lives as long as one copy
	r   io.Reader
}

func (r boundReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
