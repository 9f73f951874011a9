// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// ErrNotServed is the factory's proven answer that it has no such version,
// schematic or image.
var ErrNotServed = errors.New("not served by the Image Factory")

// Factory talks to an Image Factory (siderolabs/image-factory, docs/api.md).
type Factory struct {
	// Address of the factory; empty means [DefaultFactory].
	Address string
	// HTTP makes the requests; nil means a client that verifies certificates,
	// honours the proxy variables and waits 20 minutes for the first header,
	// which is how long the factory may take to build an image.
	HTTP *http.Client
}

var factoryHTTP = &http.Client{Transport: factoryTransport()}

func factoryTransport() http.RoundTripper {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport
	}
	transport = transport.Clone()
	transport.ResponseHeaderTimeout = 20 * time.Minute
	return transport
}

// maxAnswer bounds what is read of a JSON answer: the list of official
// extensions, the longest, is some tens of KiB.
const maxAnswer = 4 << 20

// Register makes the schematic known to the factory, which must happen once
// before its images are served, and is idempotent. It answers the id, after
// comparing the factory's with the one computed here.
func (f Factory) Register(ctx context.Context, s Schematic) (string, error) {
	want, err := s.ID()
	if err != nil {
		return "", err
	}
	text, err := s.Marshal()
	if err != nil {
		return "", err
	}
	var answer struct {
		ID string `json:"id"`
	}
	if err := f.call(ctx, http.MethodPost, text, &answer, "schematics"); err != nil {
		return "", fmt.Errorf("registering schematic %s: %w", want, err)
	}
	if answer.ID != want {
		return "", fmt.Errorf("registering schematic %s: the Image Factory answered the id %q: it marshals schematics in another way than this provider, or changed this one", want, answer.ID)
	}
	return want, nil
}

// Schematic answers the schematic with this id, as far as [Schematic] knows its
// fields. An unknown id is [ErrNotServed].
func (f Factory) Schematic(ctx context.Context, id string) (Schematic, error) {
	var s Schematic
	body, err := f.get(ctx, "schematics", id)
	if err != nil {
		return s, fmt.Errorf("reading schematic %s: %w", id, err)
	}
	if err := yaml.Unmarshal(body, &s); err != nil {
		return s, fmt.Errorf("reading schematic %s: %w", id, err)
	}
	return s, nil
}

// Versions lists the Talos releases the factory serves.
func (f Factory) Versions(ctx context.Context) ([]string, error) {
	var versions []string
	if err := f.call(ctx, http.MethodGet, nil, &versions, "versions"); err != nil {
		return nil, fmt.Errorf("listing Talos versions: %w", err)
	}
	return versions, nil
}

// Extensions lists the names of the official extensions of a Talos release.
func (f Factory) Extensions(ctx context.Context, version string) ([]string, error) {
	var list []struct {
		Name string `json:"name"`
	}
	if err := f.call(ctx, http.MethodGet, nil, &list, "version", version, "extensions", "official"); err != nil {
		return nil, fmt.Errorf("listing the extensions of Talos %s: %w", version, err)
	}
	names := make([]string, 0, len(list))
	for _, entry := range list {
		names = append(names, entry.Name)
	}
	slices.Sort(names)
	return names, nil
}

// Check says whether the factory serves this version with these extensions: it
// answers [ErrNotServed], naming what is missing, or another error where the
// factory did not answer. The factory itself finds out only when an image is
// asked for.
func (f Factory) Check(ctx context.Context, version string, extensions []string) error {
	versions, err := f.Versions(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(versions, version) {
		return fmt.Errorf("talos %s: %w", version, ErrNotServed)
	}
	if len(extensions) == 0 {
		return nil
	}
	known, err := f.Extensions(ctx, version)
	if err != nil {
		return err
	}
	for _, name := range extensions {
		if !slices.Contains(known, name) {
			return fmt.Errorf("extension %s for Talos %s: %w", name, version, ErrNotServed)
		}
	}
	return nil
}

// Size asks for an image's length in bytes by HEAD, which the factory answers
// itself, without redirecting, after building the image where it must: the
// first call for a schematic can take minutes and warms the factory's cache.
func (f Factory) Size(ctx context.Context, imageURL string) (int64, error) {
	res, err := f.do(ctx, http.MethodHead, imageURL, nil)
	if err != nil {
		return 0, fmt.Errorf("asking for the size of %s: %w", imageURL, err)
	}
	defer func() { _ = res.Body.Close() }()
	if err := statusError(res); err != nil {
		return 0, fmt.Errorf("asking for the size of %s: %w", imageURL, err)
	}
	if res.ContentLength <= 0 {
		return 0, fmt.Errorf("asking for the size of %s: the answer has no length", imageURL)
	}
	return res.ContentLength, nil
}

// Download writes an image to out and answers how many bytes it had. A body
// that is shorter than was announced is an error, not a short image.
func (f Factory) Download(ctx context.Context, imageURL string, out io.Writer) (int64, error) {
	res, err := f.do(ctx, http.MethodGet, imageURL, nil)
	if err != nil {
		return 0, fmt.Errorf("downloading %s: %w", imageURL, err)
	}
	defer func() { _ = res.Body.Close() }()
	if err := statusError(res); err != nil {
		return 0, fmt.Errorf("downloading %s: %w", imageURL, err)
	}
	n, err := io.Copy(out, res.Body)
	if err != nil {
		return n, fmt.Errorf("downloading %s: after %d bytes: %w", imageURL, n, err)
	}
	if res.ContentLength > 0 && n != res.ContentLength {
		return n, fmt.Errorf("downloading %s: got %d of %d bytes", imageURL, n, res.ContentLength)
	}
	return n, nil
}

func (f Factory) get(ctx context.Context, path ...string) ([]byte, error) {
	return f.raw(ctx, http.MethodGet, nil, path...)
}

func (f Factory) call(ctx context.Context, method string, body []byte, answer any, path ...string) error {
	text, err := f.raw(ctx, method, body, path...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the Image Factory's answer is not the JSON that was expected: %w", err)
	}
	return nil
}

func (f Factory) raw(ctx context.Context, method string, body []byte, path ...string) ([]byte, error) {
	base, err := FactoryURL(f.Address)
	if err != nil {
		return nil, err
	}
	res, err := f.do(ctx, method, base.JoinPath(path...).String(), body)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if err := statusError(res); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(res.Body, maxAnswer))
}

func (f Factory) do(ctx context.Context, method, address string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/yaml")
	}
	client := f.HTTP
	if client == nil {
		client = factoryHTTP
	}
	return client.Do(req)
}

// statusError turns a status that is no success into an error with the
// factory's own words; its 404 is [ErrNotServed].
func statusError(res *http.Response) error {
	if res.StatusCode >= 200 && res.StatusCode <= 299 {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, 512))
	said := strings.TrimSpace(string(text))
	if said == "" {
		said = http.StatusText(res.StatusCode)
	}
	err := fmt.Errorf("the Image Factory answered %d: %s", res.StatusCode, said)
	if res.StatusCode == http.StatusNotFound {
		return fmt.Errorf("%w: %w", ErrNotServed, err)
	}
	return err
}
