// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package factory simulates the Talos Image Factory: schematics with the ids
// that the real one gives them, the lists of versions and extensions, and tiny
// but valid disk images that say which image they are. It shares no code with
// the provider's own computation of ids, so that tests compare the two.
package factory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// Options describe a factory.
type Options struct {
	// Address is where it is served, "127.0.0.1:0" by default.
	Address string
	// Versions are the Talos versions on offer.
	Versions []string
	// Extensions are the names of the official extensions of every version.
	Extensions []string
	// Dir keeps the schematics over restarts. Empty keeps them in memory.
	Dir string
	// Redirect sends GET of an image to another path, as the public instance
	// does to its object storage. HEAD is never redirected.
	Redirect bool
}

// DefaultVersions are some of those that the public instance offers.
func DefaultVersions() []string {
	return []string{"v1.11.6", "v1.12.4", "v1.12.5", "v1.13.5", "v1.13.6", "v1.13.7"}
}

// DefaultExtensions are some of the official ones.
func DefaultExtensions() []string {
	return []string{
		"siderolabs/amd-ucode", "siderolabs/i915", "siderolabs/intel-ucode", "siderolabs/iscsi-tools", "siderolabs/qemu-guest-agent",
		"siderolabs/tailscale", "siderolabs/util-linux-tools", "siderolabs/zfs",
	}
}

// Factory is a running Image Factory.
type Factory struct {
	opts     Options
	listener net.Listener
	server   *http.Server

	mu         sync.Mutex
	schematics map[string][]byte
	requests   []string
}

// Start serves a factory until [Factory.Close].
func Start(ctx context.Context, opts Options) (*Factory, error) {
	if opts.Address == "" {
		opts.Address = "127.0.0.1:0"
	}
	if opts.Versions == nil {
		opts.Versions = DefaultVersions()
	}
	if opts.Extensions == nil {
		opts.Extensions = DefaultExtensions()
	}
	schematics, err := loadSchematics(opts.Dir)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", opts.Address)
	if err != nil {
		return nil, fmt.Errorf("serving the Image Factory: %w", err)
	}
	f := &Factory{opts: opts, listener: l, schematics: schematics}
	f.server = &http.Server{Handler: f.handler(), ReadHeaderTimeout: 30 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = f.server.Serve(l) }()
	return f, nil
}

// URL is the factory's address, "http://127.0.0.1:PORT".
func (f *Factory) URL() string { return "http://" + f.listener.Addr().String() }

// Close ends it.
func (f *Factory) Close() error { return f.server.Close() }

// Requests are the methods and paths asked for so far.
func (f *Factory) Requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// handler routes. The real factory answers errors as plain text.
func (f *Factory) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /schematics", f.createSchematic)
	mux.HandleFunc("GET /schematics/{id}", f.getSchematic)
	mux.HandleFunc("GET /versions", f.versions)
	mux.HandleFunc("GET /version/{version}/extensions/official", f.extensions)
	mux.HandleFunc("GET /image/{schematic}/{version}/{path}", f.image)
	mux.HandleFunc("GET /store/{schematic}/{version}/{path}", f.image)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, r.Method+" "+r.URL.Path)
		f.mu.Unlock()
		mux.ServeHTTP(w, r)
	})
}

func (f *Factory) createSchematic(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s, err := parseSchematic(raw)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	text, id, err := s.canonical()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if err := f.keep(id, text); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	answer(w, http.StatusCreated, map[string]string{"id": id, "schematic": string(text)})
}

func answer(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

// schematic answers the text of a known one.
func (f *Factory) schematic(id string) ([]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, ok := f.schematics[id]
	return text, ok
}

func (f *Factory) getSchematic(w http.ResponseWriter, r *http.Request) {
	text, ok := f.schematic(r.PathValue("id"))
	if !ok {
		http.Error(w, "schematic ID not found", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(text)
}

func (f *Factory) versions(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, f.opts.Versions)
}

var semver = regexp.MustCompile(`^v?\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

var errUnknownVersion = errors.New("version is not available")

// version checks the version of a path.
func (f *Factory) version(v string) (string, error) {
	if !semver.MatchString(v) {
		return "", fmt.Errorf("error parsing version: invalid version %q", v)
	}
	v = "v" + strings.TrimPrefix(v, "v")
	if !slices.Contains(f.opts.Versions, v) {
		return "", fmt.Errorf("%w: %s", errUnknownVersion, v)
	}
	return v, nil
}

// refuseVersion answers a malformed version with 500, as the real factory does.
func refuseVersion(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if errors.Is(err, errUnknownVersion) {
		status = http.StatusNotFound
	}
	http.Error(w, err.Error(), status)
}

type extension struct {
	Name        string `json:"name"`
	Ref         string `json:"ref"`
	Digest      string `json:"digest"`
	Author      string `json:"author"`
	Description string `json:"description"`
}

func (f *Factory) extensions(w http.ResponseWriter, r *http.Request) {
	v, err := f.version(r.PathValue("version"))
	if err != nil {
		refuseVersion(w, err)
		return
	}
	list := []extension{}
	for _, name := range f.opts.Extensions {
		list = append(list, extension{
			Name: name, Ref: "ghcr.io/" + name + ":" + strings.TrimPrefix(v, "v"), Digest: "sha256:" + strings.Repeat("0", 64),
			Author: "Sidero Labs", Description: "Stands for the extension " + name + ".",
		})
	}
	answer(w, http.StatusOK, list)
}

func (f *Factory) image(w http.ResponseWriter, r *http.Request) {
	path := r.PathValue("path")
	for _, suffix := range []string{".sha256", ".sha512", ".sigstore.json"} {
		if strings.HasSuffix(path, suffix) {
			http.Error(w, "checksums are an enterprise feature", http.StatusPaymentRequired)
			return
		}
	}
	if _, ok := f.schematic(r.PathValue("schematic")); !ok {
		http.Error(w, "schematic ID not found", http.StatusNotFound)
		return
	}
	version, err := f.version(r.PathValue("version"))
	if err != nil {
		refuseVersion(w, err)
		return
	}
	m := imagePath.FindStringSubmatch(path)
	if m == nil {
		http.Error(w, fmt.Sprintf("error parsing image path: invalid path %q", path), http.StatusBadRequest)
		return
	}
	if name := f.unknownExtension(r.PathValue("schematic")); name != "" {
		http.Error(w, fmt.Sprintf("official extension %q is not available for Talos version %s", name, version), http.StatusBadRequest)
		return
	}
	if f.opts.Redirect && r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/image/") {
		http.Redirect(w, r, "/store/"+strings.TrimPrefix(r.URL.Path, "/image/"), http.StatusFound)
		return
	}
	data, err := build(pvesim.ImageIdentity{Schematic: r.PathValue("schematic"), Version: version, Platform: m[1] + "-" + m[2] + m[3]}, m[4], m[5])
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotImplemented)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", path))
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(data)
	}
}

// Extensions are the names of the official extensions in a known schematic.
func (f *Factory) Extensions(schematic string) []string {
	text, ok := f.schematic(schematic)
	if !ok {
		return nil
	}
	s, err := parseSchematic(text)
	if err != nil {
		return nil
	}
	return s.Customization.SystemExtensions.OfficialExtensions
}

// unknownExtension answers an extension of a schematic that is not on offer;
// this is found out only when an image is asked for.
func (f *Factory) unknownExtension(schematic string) string {
	for _, name := range f.Extensions(schematic) {
		if !slices.Contains(f.opts.Extensions, name) {
			return name
		}
	}
	return ""
}
