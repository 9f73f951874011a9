// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// root is a client that has logged in as root@pam with the password.
func (r *rig) root() *Client {
	return r.client(func(c *Config) {
		c.TokenID, c.TokenSecret, c.Username, c.Password = "", "", "root@pam", pvesim.RootPassword
	})
}

// emptyBzip2 is emptyQcow2(2<<30), packed by the bzip2 tool: Go has no writer.
const emptyBzip2 = "QlpoOTFBWSZTWY0KoCAACCV3YP8IQAAIAAEgIAAAQEAAACACiCAAUKZMTIMjAqRITQbUbU5vjfNY30AT7XNAG2y6PNIQDEqJAOLuap3i2erZrv9rCQBr+LuSKcKEhGhVAQA="

// pack compresses an image.
func pack(t *testing.T, data []byte, compression string) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch compression {
	case "":
		return data
	case "bz2":
		packed, err := base64.StdEncoding.DecodeString(emptyBzip2)
		if err != nil {
			t.Fatal(err)
		}
		return packed
	case "gz":
		w = gzip.NewWriter(&out)
	case "zst":
		w, err = zstd.NewWriter(&out)
	case "xz":
		w, err = xz.NewWriter(&out)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func sha256Of(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func isoOnly(o *pvesim.Options) {
	o.Storages = []pvesim.Storage{{ID: "local", Type: "dir", Content: []string{"iso"}}, {ID: "local-lvm", Type: "lvmthin", Content: []string{"images"}}}
}

// Every way on which an image can come, on every release.
func TestTheWayOfTheImageIsChosenAndTold(t *testing.T) {
	older := []string{"8.1", "8.2", "8.3"}
	newer := []string{"8.4", "9.0", "9.2"}
	tests := []struct {
		name        string
		releases    []string
		password    bool
		compression string
		local       bool
		upload      bool
		storages    func(*pvesim.Options)
		method      string
		reason      string
	}{
		{"a token and a plain image", newer, false, "", false, false, nil, TransferDownload, "may let node pve1 download"},
		{"the password and a plain image", newer, true, "", false, false, nil, TransferDownload, "may let node pve1 download"},
		{"a token and xz", newer, false, "xz", false, false, nil, TransferUpload, "does not unpack"},
		{"a token and zst", newer, false, "zst", false, false, nil, TransferUpload, "(zst)"},
		{"a token and gz", []string{"9.2"}, false, "gz", false, false, nil, TransferUpload, "(gz)"},
		{"a token and bz2", []string{"9.2"}, false, "bz2", false, false, nil, TransferUpload, "(bz2)"},
		{"a file", newer, false, "", true, false, nil, TransferUpload, "a file of this machine"},
		{"a compressed file", []string{"9.2"}, false, "xz", true, false, nil, TransferUpload, "a file of this machine"},
		{"an upload that was asked for", []string{"9.2"}, false, "", false, true, nil, TransferUpload, "asked for"},
		{"the password without content import", newer, true, "", false, false, isoOnly, TransferDownloadISO, "no storage of the node holds"},
		{"the password and a plain image", older, true, "", false, false, isoOnly, TransferDownloadISO, "from paths alone"},
		{"the password and zst, which the node unpacks", older, true, "zst", false, false, isoOnly, TransferDownloadISO, "from paths alone"},
		{"the password and gz, which the node unpacks", older, true, "gz", false, false, isoOnly, TransferDownloadISO, "from paths alone"},
		{"the password and bz2, which the node unpacks", []string{"8.3"}, true, "bz2", false, false, isoOnly, TransferDownloadISO, "from paths alone"},
		{"the password and bz2, which the node does not unpack yet", []string{"8.1", "8.2"}, true, "bz2", false, false, isoOnly, TransferUploadISO, "does not unpack bz2"},
		{"the password and xz", older, true, "xz", false, false, isoOnly, TransferUploadISO, "does not unpack xz"},
		{"the password and a file", older, true, "", true, false, isoOnly, TransferUploadISO, "a file of this machine"},
		{"the password and an upload that was asked for", []string{"8.1"}, true, "", false, true, isoOnly, TransferUploadISO, "asked for"},
	}
	for _, tt := range tests {
		for _, release := range tt.releases {
			t.Run(release+" "+tt.name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, func(o *pvesim.Options) {
					o.Release = release
					if tt.storages != nil {
						tt.storages(o)
					}
				})
				r.image = pack(t, r.image, tt.compression)
				spec := r.spec()
				spec.Upload = tt.upload
				spec.Image = &testImage{url: r.images.URL + "/image", compression: tt.compression}
				if tt.local {
					name := filepath.Join(t.TempDir(), strings.TrimSuffix("image.qcow2."+tt.compression, "."))
					if err := os.WriteFile(name, r.image, 0o600); err != nil {
						t.Fatal(err)
					}
					image, err := NewFileImage(ImageOptions{File: name, Checksum: "sha256:" + sha256Of(r.image)})
					if err != nil {
						t.Fatal(err)
					}
					spec.Image = image
				}
				client := r.client()
				if tt.password {
					client = r.root()
				}
				made, err := client.EnsureTemplate(t.Context(), spec, uuid.NewString(), nil, func(Template) {})
				if err != nil {
					t.Fatal(err)
				}
				r.exactlyOne(made, made.Instance)
				if made.Transfer.Method != tt.method || !strings.Contains(made.Transfer.Reason, tt.reason) {
					t.Errorf("the way is %s, because %s; want %s, because ... %s", made.Transfer.Method, made.Transfer.Reason, tt.method, tt.reason)
				}
				if err := client.DeleteTemplate(t.Context(), made, nil); err != nil {
					t.Fatal(err)
				}
				if s := r.sim.Summary(); len(s.VMs)+len(s.Files) > 0 {
					t.Errorf("the deletion left %+v", s)
				}
			})
		}
	}
}

func TestWhereNoWayLeadsTheAnswerSaysWhy(t *testing.T) {
	for _, release := range []string{"8.1", "8.2", "8.3"} {
		r := newRig(t, func(o *pvesim.Options) { o.Release = release })
		_, err := r.client().EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), nil, func(Template) {})
		if err == nil || !strings.Contains(err.Error(), "allows that to no API token, not even one of root@pam") {
			t.Errorf("%s: error is %v", release, err)
		}
	}
	for _, version := range []string{"7.4-17", "8.0.4", "6.4-1"} {
		r := newRig(t)
		r.sim.Inject(pvesim.Fault{Path: "/version", Times: -1, Body: fmt.Sprintf(`{"data":{"version":%q,"release":"7.4","repoid":"x"}}`, version)})
		_, err := r.client().EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), nil, func(Template) {})
		if err == nil || !strings.Contains(err.Error(), "templates are made on 8.1 and newer: upgrade it") {
			t.Errorf("%s: error is %v", version, err)
		}
		if calls := r.faults.calls(); len(calls) > 0 {
			t.Errorf("%s: something was written: %v", version, calls)
		}
	}
}

func TestANodeThatCannotDownloadIsHelped(t *testing.T) {
	for _, fault := range []pvesim.Fault{
		{Path: "/nodes/*/storage/*/download-url", Task: "download failed: wget: unable to connect"},
		{Path: "/nodes/*/storage/*/download-url", Status: http.StatusForbidden, Message: "Permission check failed"},
	} {
		r := newRig(t)
		r.sim.Inject(fault)
		made := r.make(r.spec())
		r.exactlyOne(made, made.Instance)
		if made.Transfer.Method != TransferUpload || !strings.Contains(made.Transfer.Reason, "could not download") {
			t.Errorf("after %+v the way is %+v", fault, made.Transfer)
		}
	}
}

func TestAChecksumIsVerifiedOnEveryWay(t *testing.T) {
	for _, compression := range []string{"", "zst"} {
		for _, local := range []bool{false, true} {
			for _, right := range []bool{true, false} {
				t.Run(fmt.Sprintf("compression=%q local=%v right=%v", compression, local, right), func(t *testing.T) {
					r := newRig(t)
					r.image = pack(t, r.image, compression)
					sum := sha256Of(r.image)
					if !right {
						sum = sha256Of([]byte("another"))
					}
					options := ImageOptions{Checksum: "sha256:" + sum, Format: "qcow2", Compression: compression}
					spec := r.spec()
					var err error
					if local {
						options.File = filepath.Join(t.TempDir(), "image")
						if err := os.WriteFile(options.File, r.image, 0o600); err != nil {
							t.Fatal(err)
						}
						spec.Image, err = NewFileImage(options)
					} else {
						options.URL = r.images.URL + "/image"
						spec.Image, err = NewRemoteImage(options)
					}
					if err != nil {
						t.Fatal(err)
					}
					made, err := r.client().EnsureTemplate(t.Context(), spec, uuid.NewString(), nil, func(Template) {})
					if right {
						if err != nil {
							t.Fatal(err)
						}
						r.exactlyOne(made, made.Instance)
						return
					}
					if err == nil || !strings.Contains(err.Error(), "checksum") {
						t.Fatalf("error is %v", err)
					}
					if s := r.sim.Summary(); len(s.VMs)+len(s.Files) > 0 {
						t.Errorf("what failed has left %+v", s)
					}
				})
			}
		}
	}
}

// The connection to the image's server ends early, twice: once by the length,
// once without a word.
func TestAFetchThatIsCutShortIsRepeated(t *testing.T) {
	r := newRig(t)
	packed := pack(t, r.image, "zst")
	var gets atomic.Int32
	serve := r.images.Config.Handler
	r.image = packed
	r.images.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet && gets.Add(1) < 3 {
			w.Header().Set("Content-Length", fmt.Sprint(len(packed)))
			_, _ = w.Write(packed[:len(packed)/2])
			panic(http.ErrAbortHandler)
		}
		serve.ServeHTTP(w, req)
	})
	image, err := NewRemoteImage(ImageOptions{URL: r.images.URL + "/image.qcow2.zst"})
	if err != nil {
		t.Fatal(err)
	}
	spec := r.spec()
	spec.Image = image
	made := r.make(spec)
	r.exactlyOne(made, made.Instance)
	if gets.Load() != 3 {
		t.Errorf("the image was fetched %d times, want 3", gets.Load())
	}
}

func TestWhatIsNoArchiveIsSaidSo(t *testing.T) {
	for _, compression := range ImageCompressions {
		for name, data := range map[string][]byte{"noise": []byte("this is no archive at all, whatever its name may say"), "a torn one": nil} {
			t.Run(compression+" "+name, func(t *testing.T) {
				r := newRig(t)
				if r.image = data; data == nil {
					whole := pack(t, emptyQcow2(2<<30), compression)
					r.image = whole[:len(whole)-9]
				}
				spec := r.spec()
				spec.Image = &testImage{url: r.images.URL + "/image", compression: compression}
				_, err := r.client().EnsureTemplate(t.Context(), spec, uuid.NewString(), nil, func(Template) {})
				if err == nil || !strings.Contains(err.Error(), "unpacking "+r.images.URL+"/image as "+compression) {
					t.Fatalf("error is %v", err)
				}
				if s := r.sim.Summary(); len(s.VMs)+len(s.Files) > 0 {
					t.Errorf("what failed has left %+v", s)
				}
			})
		}
	}
}

func TestAStorageWithoutRoomIsNamedBeforeTheTransfer(t *testing.T) {
	r := newRig(t, func(o *pvesim.Options) {
		o.Storages = []pvesim.Storage{
			{ID: "local", Type: "dir", Content: []string{"import"}, Total: 1000}, {ID: "local-lvm", Type: "lvmthin", Content: []string{"images"}},
		}
	})
	_, err := r.client().EnsureTemplate(t.Context(), r.spec(), uuid.NewString(), nil, func(Template) {})
	if err == nil || !strings.Contains(err.Error(), "storage local on node pve1 has 1000 bytes free") || !strings.Contains(err.Error(), "256 KiB") {
		t.Errorf("error is %v", err)
	}
	if calls := r.faults.calls(); len(calls) > 0 {
		t.Errorf("something was written: %v", calls)
	}
}

func TestATransferIsToldOfInTenths(t *testing.T) {
	r := newRig(t)
	r.image = append(emptyQcow2(2<<30), make([]byte, 3<<20)...)
	spec := r.spec()
	spec.Upload = true
	var told []string
	report := func(_ context.Context, phase, message string) {
		if phase == "image" && strings.Contains(message, "%") {
			told = append(told, message)
		}
	}
	if _, err := r.client().EnsureTemplate(t.Context(), spec, uuid.NewString(), report, func(Template) {}); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(told, "\n")
	for _, want := range []string{"fetching", "uploading to storage local on node pve1", "(50 %)", "(100 %)", "of 3.2 MiB"} {
		if !strings.Contains(text, want) {
			t.Errorf("the progress has no %q:\n%s", want, text)
		}
	}
	if len(told) > 24 {
		t.Errorf("the progress is told %d times", len(told))
	}
}

func TestImagesAreNamedByTheirEndings(t *testing.T) {
	tests := []struct {
		options             ImageOptions
		format, compression string
		err                 string
	}{
		{ImageOptions{URL: "https://x.example/a.qcow2"}, "qcow2", "", ""},
		{ImageOptions{URL: "https://x.example/a.RAW.XZ?signature=1"}, "raw", "xz", ""},
		{ImageOptions{File: "b.vmdk.gz"}, "vmdk", "gz", ""},
		{ImageOptions{File: "b.img", Format: "raw"}, "raw", "", ""},
		{ImageOptions{File: "b.img.bz2", Format: "qcow2"}, "qcow2", "bz2", ""},
		{ImageOptions{File: "b", Format: "qcow2", Compression: "zst"}, "qcow2", "zst", ""},
		{ImageOptions{File: "b.img"}, "", "", "does not tell the format"},
		{ImageOptions{URL: "https://x.example/a.ova"}, "", "", "take the disk out of them"},
		{ImageOptions{URL: "https://x.example/"}, "", "", "does not tell the format"},
		{ImageOptions{URL: "ftp://x.example/a.qcow2"}, "", "", "is not of the form https://"},
		{ImageOptions{URL: "https://me:secret@x.example/a.qcow2"}, "", "", "user name or password"},
		{ImageOptions{File: "a.qcow2", Checksum: "sha256:12"}, "", "", "64 hexadecimal digits"},
		{ImageOptions{File: "a.qcow2", Checksum: "crc32:12"}, "", "", "is not of the form"},
		{ImageOptions{File: "a.qcow2", Compression: "lzo"}, "", "", "cannot be unpacked"},
	}
	for _, tt := range tests {
		var image ImageSource
		var err error
		if tt.options.URL != "" {
			image, err = NewRemoteImage(tt.options)
		} else {
			image, err = NewFileImage(tt.options)
		}
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%+v: error is %v, want one with %q", tt.options, err, tt.err)
			}
			continue
		}
		if err != nil || image.Format() != tt.format || image.Compression() != tt.compression {
			t.Errorf("%+v: got %v, %v", tt.options, image, err)
		}
	}
}

// The identity follows the content where that is known, and else the address.
func TestIdentitiesOfImages(t *testing.T) {
	remote := func(address, checksum string) string {
		t.Helper()
		image, err := NewRemoteImage(ImageOptions{URL: address, Checksum: checksum, Format: "raw"})
		if err != nil {
			t.Fatal(err)
		}
		return image.Identity()
	}
	sum := "SHA256:" + strings.ToUpper(sha256Of([]byte("x")))
	if remote("https://a.example/x", sum) != remote("https://b.example/y", sum) || remote("https://a.example/x", sum) != strings.ToLower(sum) {
		t.Error("the same content at two addresses has two identities")
	}
	if remote("https://a.example/x", "") == remote("https://b.example/x", "") {
		t.Error("two addresses have one identity")
	}
	if id := remote("https://a.example/x?signature=secret", ""); strings.Contains(id, "secret") {
		t.Errorf("the identity %s tells what is in the query", id)
	}
}

func TestMessagesDoNotTellSignatures(t *testing.T) {
	for _, address := range []string{"http://127.0.0.1:1/x.qcow2?signature=secret", newRig(t).images.URL + "/x.qcow2?signature=secret"} {
		r := newRig(t)
		r.image = nil
		image, err := NewRemoteImage(ImageOptions{URL: address})
		if err != nil {
			t.Fatal(err)
		}
		spec := r.spec()
		spec.Image, spec.Upload = image, true
		var told []string
		report := func(_ context.Context, _, message string) { told = append(told, message) }
		_, err = r.client().EnsureTemplate(t.Context(), spec, uuid.NewString(), report, func(Template) {})
		if err != nil {
			told = append(told, err.Error())
		}
		if slices.ContainsFunc(told, func(s string) bool { return strings.Contains(s, "secret") }) {
			t.Errorf("a message tells the signature: %q", told)
		}
	}
}
