// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// files serves some bytes under every path.
func files(t *testing.T, data []byte) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "missing") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

const download = "/nodes/pve1/storage/local/download-url"

func TestDownloads(t *testing.T) {
	l := start(t, pvesim.Options{})
	data := bytes.Repeat([]byte("x"), 4096)
	url := files(t, data)
	get := func(name string, more ...string) string {
		return l.task("POST", download, form(append([]string{"url", url + "/" + name, "content", "import", "filename", name}, more...)...))
	}
	if exit := get("a.raw"); exit != "OK" {
		t.Fatal(exit)
	}
	var list []struct {
		VolID, Format, Content string
		Size                   int
	}
	l.ok("GET", "/nodes/pve1/storage/local/content", form("content", "import"), &list)
	if len(list) != 1 || list[0].VolID != "local:import/a.raw" || list[0].Size != 4096 || list[0].Format != "raw" || list[0].Content != "import" {
		t.Errorf("content %+v", list)
	}
	for _, tc := range []struct{ name, want, file string }{
		{"the file exists", "refusing to override existing file '/var/lib/vz/import/a.raw'", "a.raw"},
		{"the server has none", "download failed: wget: server returned error: HTTP/1.1 404 Not Found", "missing.raw"},
		{"it is not what its name says", "import/b.qcow2: untrusted image: Image is not in qcow2 format", "b.qcow2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if exit := get(tc.file); exit != tc.want {
				t.Errorf("exit %q, want %q", exit, tc.want)
			}
		})
	}
	t.Run("the file exists with the checksum", func(t *testing.T) {
		if exit := get("a.raw", "checksum-algorithm", "sha256", "checksum", sum(data)); exit != "OK" {
			t.Error(exit)
		}
	})
	t.Run("another checksum", func(t *testing.T) {
		if exit := get("a.raw", "checksum-algorithm", "sha256", "checksum", "00"); !strings.HasPrefix(exit, "checksum mismatch: got '"+sum(data)) {
			t.Error(exit)
		}
	})
	t.Run("compression of what is imported", func(t *testing.T) {
		if exit := get("c.raw", "compression", "gz"); exit != "decompression not supported for import" {
			t.Error(exit)
		}
	})
	t.Run("a short one goes unnoticed", func(t *testing.T) {
		l.ShortDownload(100)
		if exit := get("short.raw"); exit != "OK" {
			t.Error(exit)
		}
		l.ok("GET", "/nodes/pve1/storage/local/content", form("content", "import"), &list)
		if list[1].VolID != "local:import/short.raw" || list[1].Size != 100 {
			t.Errorf("content %+v", list)
		}
	})
	t.Run("a name is made normal", func(t *testing.T) {
		l.done("POST", download, form("url", url, "content", "import", "filename", "../v 1 (x).raw"))
		if files := strings.Join(l.Summary().Files, " "); !strings.Contains(files, "local:import/v_1__x_.raw") {
			t.Error(files)
		}
	})
	t.Run("the size and name as the node sees them", func(t *testing.T) {
		var meta struct {
			Filename string
			Size     int
		}
		l.ok("GET", "/nodes/pve1/query-url-metadata", form("url", url+"/a.raw"), &meta)
		if meta.Filename != "a.raw" || meta.Size != 4096 {
			t.Errorf("%+v", meta)
		}
		r := l.send("GET", "/nodes/pve1/query-url-metadata", form("url", url+"/missing"))
		if r.reason != "invalid server response: '404 Not Found'" {
			t.Errorf("%d %s", r.status, r.reason)
		}
	})
}

// qcow2With is the header of an image that reaches for other files.
func qcow2With(backing uint64, incompatible uint64) []byte {
	h := make([]byte, 512)
	copy(h, "QFI\xfb")
	binary.BigEndian.PutUint32(h[4:], 3)
	binary.BigEndian.PutUint64(h[8:], backing)
	binary.BigEndian.PutUint64(h[24:], 1<<30)
	binary.BigEndian.PutUint64(h[72:], incompatible)
	return h
}

func TestImagesThatReachForOtherFilesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		image []byte
		want  string
	}{
		"a backing file":        {qcow2With(104, 0), "import/a.qcow2: untrusted image: file has a backing file"},
		"an external data file": {qcow2With(0, 4), "import/a.qcow2: untrusted image: file has an external data file"},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t, pvesim.Options{})
			if exit := l.task("POST", download, form("url", files(t, tc.image), "content", "import", "filename", "a.qcow2")); exit != tc.want {
				t.Errorf("exit %q, want %q", exit, tc.want)
			}
		})
	}
}

// multipartForm is an upload's body with its parts in the order given; the last
// field is the file.
func multipartForm(t *testing.T, fields [][2]string, filename string, data []byte) (body []byte, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, f := range fields {
		if f[0] == "filename" {
			part, err := w.CreateFormFile("filename", filename)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := part.Write(data); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := w.WriteField(f[0], f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), w.FormDataContentType()
}

func TestUploads(t *testing.T) {
	l := start(t, pvesim.Options{})
	data := []byte("an image")
	for _, tc := range []struct {
		name   string
		fields [][2]string
		file   string
		status int
		want   string // the reason or the task's exit
	}{
		{"content, then the file", [][2]string{{"content", "iso"}, {"filename", ""}}, "a.iso", 200, "OK"},
		{"again, over the old one", [][2]string{{"content", "iso"}, {"filename", ""}}, "a.iso", 200, "OK"},
		{"with a checksum", [][2]string{{"content", "iso"}, {"checksum-algorithm", "sha256"}, {"checksum", sum(data)}, {"filename", ""}}, "b.iso", 200, "OK"},
		{"with a wrong checksum", [][2]string{{"content", "iso"}, {"checksum-algorithm", "sha256"}, {"checksum", "00"}, {"filename", ""}}, "c.iso", 200,
			"checksum mismatch: got '" + sum(data) + "' != expect '00'"},
		{"the file first", [][2]string{{"filename", ""}, {"content", "iso"}}, "d.iso", 400, failed},
		{"the checksum before its algorithm", [][2]string{{"content", "iso"}, {"checksum", "00"}, {"checksum-algorithm", "sha256"}, {"filename", ""}}, "e.iso", 501,
			"unexpected form field 'checksum-algorithm'"},
		{"no file", [][2]string{{"content", "iso"}}, "", 400, failed},
		{"a wrong ending", [][2]string{{"content", "iso"}, {"filename", ""}}, "f.qcow2", 400, failed},
		{"content that the storage does not take", [][2]string{{"content", "backup"}, {"filename", ""}}, "g.iso", 400, failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			body, ctype := multipartForm(t, tc.fields, tc.file, data)
			r := l.upload(body, ctype)
			if r.status != tc.status {
				t.Fatalf("%d %s %v, want %d", r.status, r.reason, r.errors, tc.status)
			}
			got := r.reason
			if r.status == 200 {
				got = l.wait(strings.Trim(string(r.data), `"`))
			}
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
	if got := strings.Join(l.Summary().Files, " "); got != "local:iso/a.iso local:iso/b.iso" {
		t.Errorf("files %s", got)
	}
}

func (l *lab) upload(body []byte, contentType string) reply {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), "POST", l.APIURL()+"/nodes/pve1/storage/local/upload", bytes.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	return l.roundTrip(req)
}

// TestTheWireIsProxmoxs sends what no Go client sends.
func TestTheWireIsProxmoxs(t *testing.T) {
	l := start(t, pvesim.Options{})
	auth := "Host: x\r\nAuthorization: PVEAPIToken=" + l.token + "\r\n"
	for name, tc := range map[string]struct{ request, want string }{
		"a chunked upload": {
			"POST /api2/json/nodes/pve1/storage/local/upload HTTP/1.1\r\n" + auth + "Content-Type: multipart/form-data; boundary=x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
			"HTTP/1.1 501 chunked transfer encoding not supported",
		},
		"a body on DELETE": {
			"DELETE /api2/json/pools HTTP/1.1\r\n" + auth + "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
			"HTTP/1.1 501 Unexpected content for method 'DELETE'",
		},
		"a form that is too large": {
			fmt.Sprintf("POST /api2/json/pools HTTP/1.1\r\n%sContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n", auth, 600<<10),
			"HTTP/1.1 501 for data too large",
		},
		"an unknown type of content": {
			"POST /api2/json/pools HTTP/1.1\r\n" + auth + "Content-Type: text/yaml\r\nContent-Length: 2\r\n\r\n{}",
			"HTTP/1.1 506 upload 'Content-Type 'text/yaml' not implemented",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := l.statusLine(tc.request); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestJSONBodiesAreReadAsForms(t *testing.T) {
	l := start(t, pvesim.Options{})
	req, err := http.NewRequestWithContext(t.Context(), "POST", l.APIURL()+"/nodes/pve1/qemu",
		strings.NewReader(`{"vmid":100,"cores":2,"onboot":true,"name":"x","description":null}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	r := l.roundTrip(req)
	if r.status != 200 || l.wait(strings.Trim(string(r.data), `"`)) != "OK" {
		t.Fatalf("%d %s %v", r.status, r.reason, r.errors)
	}
	if c := l.config(100); c["cores"] != 2.0 || c["onboot"] != 1.0 || c["name"] != "x" {
		t.Errorf("configuration %v", c)
	}
}
