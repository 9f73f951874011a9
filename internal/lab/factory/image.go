// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package factory

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// imagePath is "<platform>-<arch>[-secureboot].<format>[.<compression>]", parsed
// generically as the real factory does.
var imagePath = regexp.MustCompile(`^([a-z][a-z0-9-]*?)-(amd64|arm64)(-secureboot)?\.(raw|qcow2|vhd|ova|iso|vmdk)(?:\.(xz|gz|zst|tar\.gz))?$`)

// rawSize is the length of a raw lab image; a real one has some 2.2 GB.
const rawSize = 4 << 20

// virtualSize is the size of the disk in a qcow2 image.
const virtualSize = 2 << 30

// build makes an image: a disk whose first sector says which one it is.
func build(id pvesim.ImageIdentity, format, compression string) ([]byte, error) {
	sector, err := firstSector(id)
	if err != nil {
		return nil, err
	}
	var data []byte
	switch format {
	case "raw":
		data = make([]byte, rawSize)
		copy(data, sector)
	case "qcow2":
		data = qcow2Image(sector)
	default:
		return nil, fmt.Errorf("images of format %s are not simulated", format)
	}
	return pack(data, compression)
}

func firstSector(id pvesim.ImageIdentity) ([]byte, error) {
	text, err := json.Marshal(id)
	if err != nil {
		return nil, err
	}
	sector := slices.Concat([]byte(pvesim.ImageMagic), text, []byte("\n"))
	if len(sector) > 510 {
		return nil, fmt.Errorf("the identity of image %s does not fit into a sector", id)
	}
	sector = append(sector, make([]byte, 512-len(sector))...)
	sector[510], sector[511] = 0x55, 0xaa
	return sector, nil
}

// pack compresses.
func pack(data []byte, compression string) ([]byte, error) {
	var buf bytes.Buffer
	var w io.WriteCloser
	var err error
	switch compression {
	case "":
		return data, nil
	case "gz":
		w = gzip.NewWriter(&buf)
	case "zst":
		w, err = zstd.NewWriter(&buf)
	case "xz":
		w, err = xz.NewWriter(&buf)
	default:
		return nil, fmt.Errorf("images compressed as %s are not simulated", compression)
	}
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// The clusters of a qcow2 image, in order: header, refcount table, refcount
// block, L1 table, L2 table, and the one that holds data.
const (
	clusterBits = 13 // 8 KiB, as the real factory's images have
	clusterSize = 1 << clusterBits
	clusters    = 6
)

// qcow2Image wraps the beginning of a disk as a valid qcow2 image of version 3
// (docs/interop/qcow2.rst of QEMU). All but the first cluster of the disk is
// unallocated.
func qcow2Image(head []byte) []byte {
	const copied = 1 << 63 // refcount is exactly one
	img := make([]byte, clusters*clusterSize)
	be := binary.BigEndian
	copy(img, "QFI\xfb")
	be.PutUint32(img[4:], 3)
	be.PutUint32(img[20:], clusterBits)
	be.PutUint64(img[24:], virtualSize)
	be.PutUint32(img[36:], virtualSize/(clusterSize/8*clusterSize)) // entries of the L1 table
	be.PutUint64(img[40:], 3*clusterSize)                           // L1 table
	be.PutUint64(img[48:], 1*clusterSize)                           // refcount table
	be.PutUint32(img[56:], 1)                                       // its clusters
	be.PutUint32(img[96:], 4)                                       // 16 bit refcounts
	be.PutUint32(img[100:], 104)                                    // length of the header
	be.PutUint64(img[1*clusterSize:], 2*clusterSize)
	for i := range clusters {
		be.PutUint16(img[2*clusterSize+2*i:], 1)
	}
	be.PutUint64(img[3*clusterSize:], 4*clusterSize|copied)
	be.PutUint64(img[4*clusterSize:], 5*clusterSize|copied)
	copy(img[5*clusterSize:], head)
	return img
}
