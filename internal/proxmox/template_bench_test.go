// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// imageBytes is the length of a raw Talos image.
const imageBytes = 2_200_000_000

// bzip2Zeros are bzip2Length zeros as bzip2 packs them, for which Go has nothing.
// Such files can be put one after the other.
const (
	bzip2Zeros  = "QlpoOTFBWSZTWQ4J4t8BX45AAMAAAAggADCATUZCoCWpCoCXMUFZJlNZDgni3wFfjkAAwAAACCAAMIBNRkKgJakKgJcxQVkmU1nEYApVAD7RQALAAABAAAggADDMCapppUiDaipEHi7kinChIcCoiS4="
	bzip2Length = 100_000_000
)

// zeros is an endless image of nothing, which packs well enough to be served
// out of memory.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// peak samples how much of the memory is in use until stop, and answers the most
// that it saw above what there was before.
func peak() (stop func() uint64) {
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var most atomic.Uint64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			if used := now.HeapInuse + now.StackInuse; used > most.Load() {
				most.Store(used)
			}
			select {
			case <-ticker.C:
			case <-done:
				return
			}
		}
	}()
	return func() uint64 {
		close(done)
		<-ended
		if idle := before.HeapInuse + before.StackInuse; most.Load() > idle {
			return most.Load() - idle
		}
		return 0
	}
}

// BenchmarkUploadingAnImageTakesLittleMemory fetches, unpacks and uploads an
// image as large as a raw one of Talos, and reports the most memory that was in
// use above that of the idle process as peak-MiB. It must stay below 64.
func BenchmarkUploadingAnImageTakesLittleMemory(b *testing.B) {
	for _, compression := range []string{"", "gz", "zst", "bz2", "xz"} {
		name := compression
		if name == "" {
			name = "plain"
		}
		b.Run(name, func(b *testing.B) {
			packed := servePacked(b, compression)
			received := make(chan int64, 1)
			sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				received <- n
				_, _ = w.Write([]byte(`{"data":null}`))
			}))
			defer sink.Close()
			image := &testImage{url: packed, format: "raw", compression: compression}
			for b.Loop() {
				c, err := New(Config{Endpoint: "https://127.0.0.1:1", TokenID: "a@b!c", TokenSecret: "x", Transport: redirect(sink.URL), PollInterval: time.Millisecond})
				if err != nil {
					b.Fatal(err)
				}
				spec := TemplateSpec{Node: "pve1", Image: image}
				run := &build{c: c, spec: spec, transfer: Transfer{Method: TransferUpload, storage: storageInfo{Name: "local"}}}
				stop := peak()
				err = run.upload(context.Background())
				most := stop()
				if err != nil {
					b.Fatal(err)
				}
				if n := <-received; n < imageBytes {
					b.Fatalf("%d bytes arrived, want %d and the form around them", n, imageBytes)
				}
				b.ReportMetric(float64(most)/(1<<20), "peak-MiB")
				if most > 64<<20 {
					b.Errorf("%d MiB above the idle process", most>>20)
				}
			}
			b.SetBytes(imageBytes)
		})
	}
}

// redirect sends every request to another server.
type redirect string

func (to redirect) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	target, err := req.URL.Parse(string(to) + req.URL.Path)
	if err != nil {
		return nil, err
	}
	out.URL, out.Host = target, target.Host
	return http.DefaultTransport.RoundTrip(out)
}

// servePacked serves an image of imageBytes zeros.
func servePacked(b *testing.B, compression string) string {
	b.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			return
		}
		var out io.WriteCloser
		var err error
		switch compression {
		case "":
			w.Header().Set("Content-Length", fmt.Sprint(imageBytes))
			_, _ = io.CopyN(w, zeros{}, imageBytes)
			return
		case "gz":
			out, err = gzip.NewWriterLevel(w, gzip.BestSpeed)
		case "zst":
			out, err = zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
		case "bz2":
			packed, err := base64.StdEncoding.DecodeString(bzip2Zeros)
			if err != nil {
				b.Error(err)
			}
			for range imageBytes / bzip2Length {
				_, _ = w.Write(packed)
			}
			return
		case "xz":
			out, err = xz.WriterConfig{DictCap: 1 << 20}.NewWriter(w)
		}
		if err == nil {
			_, err = io.CopyN(out, zeros{}, imageBytes)
		}
		if err == nil {
			err = out.Close()
		}
		if err != nil {
			b.Error(err)
		}
	}))
	b.Cleanup(server.Close)
	return server.URL + "/image"
}
