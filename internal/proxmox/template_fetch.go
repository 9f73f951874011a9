// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"bufio"
	"compress/bzip2"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// fetched is an image's unpacked content on this machine.
type fetched struct {
	*os.File
	size int64
	// remove is the name of a temporary file that could not lose it earlier.
	remove string
}

// Close closes the file and removes it where it is a temporary one.
func (f fetched) Close() error {
	err := f.File.Close()
	if f.remove != "" {
		err = errors.Join(err, os.Remove(f.remove))
	}
	return err
}

// fetch has the unpacked image on this machine, since Proxmox VE wants to know
// its length before an upload: a plain local file as it is, anything else in a
// temporary file, through which it streams, so that memory stays small.
func (b *build) fetch(ctx context.Context) (fetched, error) {
	if local, ok := b.spec.Image.(*FileImage); ok && local.Compression() == "" {
		return b.openLocal(local)
	}
	temporary, err := os.CreateTemp("", "capi-image-*")
	if err != nil {
		return fetched{}, fmt.Errorf("making a temporary file for the image: %w", err)
	}
	// Where the system allows it the file loses its name right away, so that not
	// even a killed provider leaves it.
	out := fetched{File: temporary}
	if os.Remove(temporary.Name()) != nil {
		out.remove = temporary.Name()
	}
	out.size, err = b.fill(ctx, temporary)
	if err == nil {
		_, err = temporary.Seek(0, io.SeekStart)
	}
	if err != nil {
		return fetched{}, errors.Join(err, out.Close())
	}
	return out, nil
}

// openLocal opens a local file after checking it.
func (b *build) openLocal(image *FileImage) (fetched, error) {
	if algorithm, want := image.Checksum(); want != "" {
		got, _, err := hashFile(image.path, algorithm)
		if err != nil {
			return fetched{}, err
		}
		if got != want {
			return fetched{}, checksumError(image.path, algorithm, got, want)
		}
	}
	f, err := os.Open(image.path)
	if err != nil {
		return fetched{}, fmt.Errorf("reading the image file: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return fetched{}, fmt.Errorf("reading the image file: %w", err)
	}
	return fetched{File: f, size: info.Size()}, nil
}

// errChecksum marks the error of an image whose content is another one.
var errChecksum = errors.New("the checksum does not match")

func checksumError(what, algorithm, got, want string) error {
	return fmt.Errorf("%w: %s has the %s %s, not %s: it was changed, or the transfer went wrong", errChecksum, what, algorithm, got, want)
}

// fill writes the unpacked image to out.
func (b *build) fill(ctx context.Context, out *os.File) (int64, error) {
	image, name := b.spec.Image, b.sourceName()
	if free, ok := roomIn(os.TempDir()); ok && b.served > free {
		return 0, fmt.Errorf("the temporary folder %s has %s free, and the image %s needs at least %s: make room, or name another folder in the environment variable TMPDIR",
			os.TempDir(), bytesText(free), name, bytesText(b.served))
	}
	algorithm, want := image.Checksum()
	var sum hash.Hash
	in, sink := io.Pipe()
	served := io.MultiWriter(sink, &meter{total: b.served, say: func(done string) { b.report(ctx, "image", "fetching %s: %s", name, done) }})
	if want != "" {
		sum = hashes[algorithm]()
		served = io.MultiWriter(served, sum)
	}
	arrived := make(chan error, 1)
	go func() {
		n, err := image.Download(ctx, served)
		if err == nil && b.served != 0 && n != b.served {
			err = fmt.Errorf("downloading %s: got %d of %d bytes", name, n, b.served)
		}
		arrived <- err
		_ = sink.CloseWithError(err)
	}()
	n, err := unpack(out, in, image.Compression())
	_ = in.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // ends a download that nobody reads any more
	download := <-arrived
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return 0, fmt.Errorf("unpacking %s: the temporary folder %s is full after %s: make room, or name another folder in the environment variable TMPDIR: %w",
			name, os.TempDir(), bytesText(n), err)
	case download != nil && (err == nil || !errors.Is(download, io.ErrClosedPipe)):
		return 0, download
	case err != nil:
		return 0, fmt.Errorf("unpacking %s as %s: %w", name, image.Compression(), err)
	}
	if want != "" {
		if got := hex.EncodeToString(sum.Sum(nil)); got != want {
			return 0, checksumError(name, algorithm, got, want)
		}
	}
	return n, nil
}

// sourceName names the image in messages.
func (b *build) sourceName() string {
	if local, ok := b.spec.Image.(*FileImage); ok {
		return local.path
	}
	return shown(b.spec.Image.URL())
}

// largestWindow bounds the memory that an archive may ask for. It is what zstd's
// own tool takes without being told otherwise.
const largestWindow = 128 << 20

// unpack copies in to out, unpacking it, and reads in to its end.
func unpack(out io.Writer, in io.Reader, compression string) (int64, error) {
	buffered := bufio.NewReaderSize(in, 1<<20)
	var from io.Reader = buffered
	switch compression {
	case "gz":
		r, err := gzip.NewReader(buffered)
		if err != nil {
			return 0, err
		}
		from = r
	case "zst":
		r, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(largestWindow))
		if err != nil {
			return 0, err
		}
		defer r.Close()
		from = r
	case "xz":
		r, err := xz.NewReader(buffered)
		if err != nil {
			return 0, err
		}
		from = r
	case "bz2":
		from = bzip2.NewReader(buffered)
	}
	n, err := io.Copy(out, from)
	if err != nil {
		return n, err
	}
	// What follows the archive is served as well, and part of the checksum.
	_, err = io.Copy(io.Discard, buffered)
	return n, err
}

// meter tells how much of a transfer is done, at every tenth of it.
type meter struct {
	total, done int64
	told        int64
	say         func(done string)
}

// unknownStep is how often a transfer of unknown length is told of.
const unknownStep = 256 << 20

func (m *meter) Write(p []byte) (int, error) {
	m.done += int64(len(p))
	step := m.total / 10
	if m.total == 0 {
		step = unknownStep
	}
	if step > 0 && m.done/step > m.told {
		m.told = m.done / step
		text := bytesText(m.done)
		if m.total > 0 {
			text += fmt.Sprintf(" of %s (%d %%)", bytesText(m.total), 100*m.done/m.total)
		}
		m.say(text)
	}
	return len(p), nil
}

// bytesText is a number of bytes for people, in the binary units of Proxmox VE.
func bytesText(n int64) string {
	value, unit := float64(n), 0
	for value >= 1024 && unit < 4 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d bytes", n)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + []string{"", "KiB", "MiB", "GiB", "TiB"}[unit]
}
