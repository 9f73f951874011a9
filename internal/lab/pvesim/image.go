// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/lima-vm/go-qcow2reader"
	"github.com/lima-vm/go-qcow2reader/image/qcow2"
)

// ImageMagic begins the first sector of every disk whose image came from the
// lab's Image Factory; the rest of that line is the JSON of an [ImageIdentity].
const ImageMagic = "TALOS-LAB-IMAGE "

// ImageIdentity is what the first sector of a lab image says about it.
type ImageIdentity struct {
	Schematic string `json:"schematic"`
	Version   string `json:"version"`
	// Platform is "<platform>-<arch>[-secureboot]".
	Platform string `json:"platform"`
}

// String is the form of [VM.TemplateImage].
func (i ImageIdentity) String() string { return i.Schematic + "/" + i.Version + "/" + i.Platform }

// inspected is what a node finds out about a disk image file.
type inspected struct {
	format   string
	size     int64 // virtual
	identity string
}

// errUntrusted marks images that a node refuses to take from outside.
var errUntrusted = errors.New("untrusted image")

// qcow2Header is the beginning of a qcow2 file (docs/interop/qcow2.rst of QEMU).
type qcow2Header struct {
	Magic          [4]byte
	Version        uint32
	BackingOffset  uint64
	BackingSize    uint32
	ClusterBits    uint32
	Size           uint64
	Rest           [40]byte
	Incompatible   uint64
	CompatibleBits [2]uint64
}

const externalDataFile = 1 << 2

// inspect reads an image file as a node does with one that it does not trust:
// a backing file or a data file elsewhere could reach the node's own files.
// want is the format that the name promises, "" to find it out. A file that is
// cut off behind its header passes, as it does on a node.
func (b *blobs) inspect(name, want string) (inspected, error) {
	f, err := b.open(name)
	if err != nil {
		return inspected{}, err
	}
	defer func() { _ = f.Close() }()
	var h qcow2Header
	isQcow2 := binary.Read(io.NewSectionReader(f, 0, 104), binary.BigEndian, &h) == nil && string(h.Magic[:]) == "QFI\xfb"
	if want == "" {
		want = "raw"
		if isQcow2 {
			want = "qcow2"
		}
	}
	switch want {
	case "qcow2":
		switch {
		case !isQcow2:
			return inspected{}, fmt.Errorf("%w: Image is not in qcow2 format", errUntrusted)
		case h.BackingOffset != 0:
			return inspected{}, fmt.Errorf("%w: file has a backing file", errUntrusted)
		case h.Version >= 3 && h.Incompatible&externalDataFile != 0:
			return inspected{}, fmt.Errorf("%w: file has an external data file", errUntrusted)
		}
		out := inspected{format: "qcow2", size: int64(h.Size)}
		if img, err := qcow2reader.OpenWithType(f, qcow2.Type); err == nil && img.Readable() == nil {
			out.identity = identify(img)
		}
		return out, nil
	case "raw":
		return inspected{format: "raw", size: f.Size(), identity: identify(f)}, nil
	}
	return inspected{format: want, size: f.Size()}, nil
}

// identify reads the first sector.
func identify(r io.ReaderAt) string {
	sector := make([]byte, 512)
	n, err := r.ReadAt(sector, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	line, _, _ := bytes.Cut(sector[:n], []byte("\n"))
	text, ok := strings.CutPrefix(string(line), ImageMagic)
	if !ok {
		return ""
	}
	var id ImageIdentity
	if json.Unmarshal([]byte(text), &id) != nil {
		return ""
	}
	return id.String()
}

func newSerial() string { return uuid.NewString() }
