// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package artifacts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// refName is the annotation that names an image in an OCI layout's index
// (image-spec v1.1, annotations.md).
const refName = "org.opencontainers.image.ref.name"

// layer is a compressed layer in the cache. It implements v1.Layer.
type layer struct {
	dir  string
	meta layerMeta
}

// layerMeta is kept beside the blob, so that nobody has to read it to know its sums.
type layerMeta struct {
	Digest v1.Hash `json:"digest"`
	DiffID v1.Hash `json:"diffID"`
	Size   int64   `json:"size"`
}

const (
	layerBlob = "layer.tar.gz"
	layerInfo = "layer.json"
)

func (l *layer) Digest() (v1.Hash, error)             { return l.meta.Digest, nil }
func (l *layer) DiffID() (v1.Hash, error)             { return l.meta.DiffID, nil }
func (l *layer) Size() (int64, error)                 { return l.meta.Size, nil }
func (l *layer) MediaType() (types.MediaType, error)  { return types.OCILayer, nil }
func (l *layer) Compressed() (io.ReadCloser, error)   { return os.Open(l.blob()) }
func (l *layer) Uncompressed() (io.ReadCloser, error) { return openGzip(l.blob()) }
func (l *layer) blob() string                         { return filepath.Join(l.dir, layerBlob) }

// openGzip opens a compressed file for reading its content.
func openGzip(name string) (io.ReadCloser, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	reader, err := gzip.NewReader(file)
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{reader, file}, nil
}

func openLayer(dir string) (*layer, error) {
	content, err := os.ReadFile(filepath.Join(dir, layerInfo))
	if err != nil {
		return nil, err
	}
	l := &layer{dir: dir}
	if err := json.Unmarshal(content, &l.meta); err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(dir, layerInfo), err)
	}
	return l, nil
}

// entry is a file of a layer. Folders above it are made as needed.
type entry struct {
	path    string
	mode    int64
	folder  bool
	link    string // target of a symbolic link
	content []byte
	file    string // read from here if there is no content
}

// writeLayer packs entries into the layer folder dir, which appears whole or
// not at all. The bytes depend on the entries only.
func writeLayer(dir string, entries []entry) (*layer, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	// The cache's lock sees to it that a draft is only what a killed builder left.
	draft := dir + ".part"
	if err := os.RemoveAll(draft); err != nil {
		return nil, err
	}
	if err := os.Mkdir(draft, 0o755); err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(draft) }()
	file, err := os.Create(filepath.Join(draft, layerBlob))
	if err != nil {
		return nil, err
	}
	meta, err := compressTar(file, entries)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(draft, layerInfo), content, 0o644); err != nil {
		return nil, err
	}
	if err := os.Rename(draft, dir); err != nil {
		return nil, err
	}
	return &layer{dir: dir, meta: meta}, nil
}

func compressTar(w io.Writer, entries []entry) (layerMeta, error) {
	digest, diffID, size := sha256.New(), sha256.New(), &counter{}
	// Speed first: programs are compressed once and read by this machine only.
	compressor, err := gzip.NewWriterLevel(io.MultiWriter(w, digest, size), gzip.BestSpeed)
	if err != nil {
		return layerMeta{}, err
	}
	archive := tar.NewWriter(io.MultiWriter(compressor, diffID))
	seen := map[string]bool{"/": true}
	for _, e := range entries {
		if err := addEntry(archive, e, seen); err != nil {
			return layerMeta{}, fmt.Errorf("adding %s: %w", e.path, err)
		}
	}
	if err := archive.Close(); err != nil {
		return layerMeta{}, err
	}
	if err := compressor.Close(); err != nil {
		return layerMeta{}, err
	}
	return layerMeta{
		Digest: v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", digest.Sum(nil))},
		DiffID: v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", diffID.Sum(nil))},
		Size:   size.n,
	}, nil
}

func addEntry(archive *tar.Writer, e entry, seen map[string]bool) error {
	if parent := path.Dir(e.path); !seen[parent] {
		if err := addEntry(archive, entry{path: parent, mode: 0o755, folder: true}, seen); err != nil {
			return err
		}
	}
	seen[e.path] = true
	header := &tar.Header{
		Typeflag: tar.TypeReg,
		Name:     strings.TrimPrefix(e.path, "/"),
		Mode:     e.mode,
		ModTime:  time.Unix(0, 0),
		Size:     int64(len(e.content)),
		Format:   tar.FormatPAX,
	}
	switch {
	case e.folder:
		header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
	case e.link != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
	case e.file != "":
		return addFile(archive, header, e.file)
	}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(e.content)
	return err
}

func addFile(archive *tar.Writer, header *tar.Header, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	header.Size = info.Size()
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// baseEntries is what the distroless images that most programs come in have
// beside the program: users, a home, /tmp and certificate authorities. These
// are Mozilla's, from golang.org/x/crypto/x509roots, so that images do not
// depend on the machine that builds them.
func baseEntries() []entry {
	var authorities bytes.Buffer
	for ca := range bundle.Roots() {
		if ca.Constraint != nil { // cannot be said in a file
			continue
		}
		// A buffer takes every write.
		_ = pem.Encode(&authorities, &pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate})
	}
	return []entry{
		{path: "/etc/group", mode: 0o644, content: []byte("root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n")},
		{path: "/etc/hosts", mode: 0o644, content: []byte("127.0.0.1 localhost\n")},
		{path: "/etc/nsswitch.conf", mode: 0o644, content: []byte("hosts: files dns\n")},
		{path: "/etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/root:/sbin/nologin\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n" +
			"nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")},
		{path: "/etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: authorities.Bytes()},
		{path: "/home/nonroot", mode: 0o755, folder: true},
		{path: "/root", mode: 0o700, folder: true},
		{path: "/tmp", mode: 0o1777, folder: true},
		{path: "/var/run", mode: 0o755, folder: true},
	}
}

// writeLayout writes the OCI layout with all images. Layers other than the
// programs' are made in scratch, and small.
func (b *builder) writeLayout(ctx context.Context, dir, scratch string, layers map[string]*layer) error {
	base, err := writeLayer(filepath.Join(scratch, "base"), baseEntries())
	if err != nil {
		return fmt.Errorf("packing the base layer: %w", err)
	}
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("making the image layout: %w", err)
	}
	for i, img := range b.images {
		program := layers[img.Program]
		if program == nil {
			return fmt.Errorf("packing image %s: no program is called %s", img.Names[0], img.Program)
		}
		stack := []*layer{base, program}
		if img.Files != nil {
			entries, err := img.Files(ctx, b)
			if err != nil {
				return fmt.Errorf("collecting the files of image %s: %w", img.Names[0], err)
			}
			files, err := writeLayer(filepath.Join(scratch, fmt.Sprint("files-", i)), entries)
			if err != nil {
				return fmt.Errorf("packing the files of image %s: %w", img.Names[0], err)
			}
			stack = append(stack, files)
		}
		if err := appendImage(index, img, stack); err != nil {
			return fmt.Errorf("packing image %s: %w", img.Names[0], err)
		}
	}
	return nil
}

func appendImage(index layout.Path, i image, stack []*layer) error {
	var layers []v1.Layer
	for _, l := range stack {
		layers = append(layers, l)
		if err := linkBlob(string(index), l); err != nil {
			return err
		}
	}
	img, err := imageOf(i, layers)
	if err != nil {
		return err
	}
	for _, name := range i.Names {
		if err := index.AppendImage(img, layout.WithAnnotations(map[string]string{refName: name})); err != nil {
			return err
		}
	}
	return nil
}

// linkBlob lets the layout share the cache's copy of a layer where the file
// system can do this; where it cannot, the layout gets a copy of its own.
func linkBlob(dir string, l *layer) error {
	blobs := filepath.Join(dir, "blobs", l.meta.Digest.Algorithm)
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	_ = os.Link(l.blob(), filepath.Join(blobs, l.meta.Digest.Hex))
	return nil
}

func imageOf(i image, layers []v1.Layer) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{
		User:       i.User,
		Entrypoint: i.Entrypoint,
		WorkingDir: "/",
		Env: []string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
		},
	}
	return mutate.ConfigFile(img, file)
}
