// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// rig is a simulated Proxmox VE with an image server beside it, and faults on
// the way to it.
type rig struct {
	t      *testing.T
	sim    *pvesim.Simulator
	faults *faults
	images *httptest.Server
	image  []byte
	secret string
}

func newRig(t *testing.T, change ...func(*pvesim.Options)) *rig {
	t.Helper()
	r := &rig{t: t, faults: &faults{}, image: emptyQcow2(2 << 30)}
	r.images = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(r.image))
	}))
	t.Cleanup(r.images.Close)
	options := pvesim.Options{Middleware: r.faults.wrap}
	for _, c := range change {
		c(&options)
	}
	sim, err := pvesim.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sim.Close() })
	r.sim = sim
	if r.secret, err = sim.CreateToken("root@pam", "terraform", false); err != nil {
		t.Fatal(err)
	}
	return r
}

// client works as root@pam's token, with the change where there is one.
func (r *rig) client(change ...func(*Config)) *Client {
	r.t.Helper()
	config := Config{
		Endpoint: r.sim.URL(), TokenID: "root@pam!terraform", TokenSecret: r.secret,
		CAPEM: string(r.sim.CA()), PollInterval: 4 * time.Millisecond, Lease: time.Millisecond,
	}
	for _, c := range change {
		c(&config)
	}
	c, err := New(config)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// spec is a template on the image server's image.
func (r *rig) spec() TemplateSpec {
	return TemplateSpec{
		Node: "pve1", Storage: "local-lvm", Image: &testImage{url: r.images.URL + "/image.qcow2"}, Identity: "test/1",
		Labels:           map[string]string{"talos": "v1.13.7"},
		TemplateHardware: TemplateHardware{DiskGiB: 10, BIOS: "ovmf", Disk: DiskOptions{Discard: true, SSD: true}},
		TemplateSettings: TemplateSettings{
			Name: "talos", Description: "for tests", Tags: []string{"b", "a"}, CPUType: "x86-64-v2-AES", Cores: 2, MemoryMiB: 2048,
			Sockets: 1, OSType: "l26", Machine: "q35", SCSIController: "virtio-scsi-pci", Serial: true, Agent: true,
			Networks: []NetworkDevice{{Model: "virtio", Bridge: "vmbr0"}},
		},
	}
}

// make makes the template, or fails the test.
func (r *rig) make(spec TemplateSpec) Template {
	r.t.Helper()
	t, err := r.client().EnsureTemplate(r.t.Context(), spec, uuid.NewString(), nil, func(Template) {})
	if err != nil {
		r.t.Fatal(err)
	}
	return t
}

// imports lists the image files.
func (r *rig) imports() []string {
	var out []string
	for _, file := range r.sim.Summary().Files {
		if strings.Contains(file, ":import/") {
			out = append(out, file)
		}
	}
	return out
}

// raw performs a call as root, for what the engine does not do.
func (r *rig) raw(method, path string, body map[string]any) {
	r.t.Helper()
	c := r.client()
	var upid any
	var err error
	switch method {
	case http.MethodPost:
		err = c.api.Post(r.t.Context(), path, body, &upid)
	case http.MethodPut:
		err = c.api.Put(r.t.Context(), path, body, &upid)
	case http.MethodDelete:
		err = c.api.Delete(r.t.Context(), path, &upid)
	}
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	if text, ok := upid.(string); ok && strings.HasPrefix(text, "UPID:") {
		if err := c.wait(r.t.Context(), text); err != nil {
			r.t.Fatalf("%s %s: %v", method, path, err)
		}
	}
}

// testImage is an image at a plain URL.
type testImage struct {
	url      string
	prepared atomic.Int32
	noSize   bool

	format, compression, algorithm, sum string
}

func (i *testImage) URL() string { return i.url }

func (i *testImage) Format() string {
	if i.format == "" {
		return "qcow2"
	}
	return i.format
}

func (i *testImage) Compression() string { return i.compression }

func (i *testImage) Checksum() (algorithm, sum string) { return i.algorithm, i.sum }

func (i *testImage) Prepare(context.Context) error {
	i.prepared.Add(1)
	return nil
}

func (i *testImage) Size(context.Context) (int64, error) {
	if i.noSize {
		return 0, fmt.Errorf("nobody answers")
	}
	res, err := http.Head(i.url) //nolint:noctx // the address of a test server
	if err != nil {
		return 0, err
	}
	_ = res.Body.Close()
	return res.ContentLength, nil
}

func (i *testImage) Download(_ context.Context, out io.Writer) (int64, error) {
	res, err := http.Get(i.url) //nolint:noctx // the address of a test server
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	return io.Copy(out, res.Body)
}

// emptyQcow2 is a qcow2 file of version 3 with nothing in it: its header, and
// tables that name no cluster (docs/interop/qcow2.rst of QEMU).
func emptyQcow2(size uint64) []byte {
	const cluster = 1 << 16
	file := make([]byte, 4*cluster)
	put32, put64 := binary.BigEndian.PutUint32, binary.BigEndian.PutUint64
	copy(file, "QFI\xfb")
	put32(file[4:], 3)
	put32(file[20:], 16) // cluster bits
	put64(file[24:], size)
	put32(file[36:], uint32(size>>29)+1) // entries of the level 1 table
	put64(file[40:], 3*cluster)          // where it lies
	put64(file[48:], cluster)            // the refcount table
	put32(file[56:], 1)
	put32(file[96:], 4) // refcount order
	put32(file[100:], 104)
	put64(file[cluster:], 2*cluster) // the refcount block
	for i := range 4 {
		binary.BigEndian.PutUint16(file[2*cluster+2*i:], 1)
	}
	return file
}

// faults stand between a client and the simulator. They count the writing
// calls, and do what a test asks for at one of them.
type faults struct {
	mu     sync.Mutex
	writes []string
	at     int // the writing call, from 1, that is hit; 0 for none
	after  bool
	struck func()
	// answer, when it answers true, has dealt with the request by itself.
	answer func(w http.ResponseWriter, r *http.Request) bool
}

// strike makes the nth writing call fail: before it is carried out, or after
// it, so that only its answer is lost.
func (f *faults) strike(n int, after bool, struck func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes, f.at, f.after, f.struck = nil, n, after, struck
}

func (f *faults) calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.writes...)
}

func (f *faults) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		hit := false
		if r.Method != http.MethodGet {
			f.writes = append(f.writes, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/api2/json"))
			hit = len(f.writes) == f.at
		}
		after, struck, answer := f.after, f.struck, f.answer
		f.mu.Unlock()
		if answer != nil && answer(w, r) {
			return
		}
		if !hit {
			next.ServeHTTP(w, r)
			return
		}
		if after {
			next.ServeHTTP(httptest.NewRecorder(), r)
		}
		if struck != nil {
			struck()
		}
		panic(http.ErrAbortHandler) // cuts the connection
	})
}
