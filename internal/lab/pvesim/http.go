// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// maxForm is the largest body of an ordinary call (pve-http-server).
const maxForm = 512 << 10

// call is one API call on its way.
type call struct {
	*Simulator
	request *http.Request
	// who calls; empty on paths that are open to the world.
	who      principal
	endpoint *endpoint
	// in holds the parameters of path, query and body.
	in values
	// failTask is the text with which the call's task fails; empty means it does not.
	failTask string
}

// endpoint is one row of the API's table.
type endpoint struct {
	method, path string
	schema       schema
	// check is the privilege test that is made before the parameters are looked
	// at; nil lets every authenticated caller through.
	check check
	// world endpoints need no authentication.
	world bool
	// ticketOnly endpoints refuse API tokens.
	ticketOnly bool
	// upload endpoints read their own body.
	upload bool
	// handle does the work, with the simulator's lock held unless unlocked.
	handle   func(*call) (any, error)
	unlocked bool
}

// serve answers one HTTP request, unless a fault was injected for it.
func (s *Simulator) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", s.date())
	failTask := ""
	if f := s.fault(r); f != nil {
		if s.strike(w, r, f) {
			return
		}
		failTask = f.Task
	}
	s.answer(w, r, failTask)
}

func (s *Simulator) answer(w http.ResponseWriter, r *http.Request, failTask string) {
	data, err := s.dispatch(r, failTask)
	if err != nil {
		var ref *refusal
		if !errors.As(err, &ref) {
			ref = &refusal{status: http.StatusInternalServerError, message: err.Error()}
		}
		if ref.status == http.StatusUnauthorized {
			s.holdBack(r)
		}
		s.observe(r, ref.status, ref.reason())
		s.refuse(w, ref)
		return
	}
	s.observe(r, http.StatusOK, "")
	body, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		s.refuse(w, &refusal{status: http.StatusInternalServerError, message: err.Error()})
		return
	}
	w.Header().Set("Content-Type", "application/json;charset=UTF-8")
	w.Header().Set("Server", "pve-api-daemon/3.0")
	w.Header().Set("Cache-Control", "max-age=0")
	_, _ = w.Write(body)
}

// holdBack waits for as long as a 401 is delayed.
func (s *Simulator) holdBack(r *http.Request) {
	if s.opts.Timing.Unauthorized <= 0 {
		return
	}
	select {
	case <-s.opts.Clock.After(s.opts.Timing.Unauthorized):
	case <-r.Context().Done():
	case <-s.ctx.Done():
	}
}

// refuse writes an error with its own reason phrase, which net/http has no way
// to say, and closes the connection as pveproxy does.
func (s *Simulator) refuse(w http.ResponseWriter, ref *refusal) {
	body := s.refusalBody(ref)
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		w.WriteHeader(ref.status)
		_, _ = w.Write(body)
		return
	}
	conn, buf, err := hijacker.Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(buf, "HTTP/1.1 %d %s\r\nConnection: close\r\nServer: pve-api-daemon/3.0\r\nDate: %s\r\n", ref.status, ref.reason(), s.date())
	_, _ = fmt.Fprintf(buf, "Content-Type: application/json;charset=UTF-8\r\nContent-Length: %d\r\n\r\n", len(body))
	_, _ = buf.Write(body)
	_ = buf.Flush()
}

// date is the time as answers tell it.
func (s *Simulator) date() string { return s.opts.Clock.Now().UTC().Format(http.TimeFormat) }

func (s *Simulator) refusalBody(ref *refusal) []byte {
	if ref.bare {
		return nil
	}
	body := map[string]any{"data": nil}
	if len(ref.params) > 0 {
		body["errors"] = ref.params
	}
	// The text is in the body since Proxmox VE 8.4; before, only in the status line.
	if s.release.atLeast(8, 4) {
		body["message"] = ref.message + "\n"
	}
	out, err := json.Marshal(body)
	if err != nil {
		return nil
	}
	return out
}

const apiRoot = "/api2/json"

// dispatch finds the endpoint of a request, checks caller, privileges and
// parameters in Proxmox VE's order, and does the work.
func (s *Simulator) dispatch(r *http.Request, failTask string) (any, error) {
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), apiRoot)
	if !ok {
		return nil, &refusal{status: http.StatusNotFound, message: fmt.Sprintf("no such file '%s'", r.URL.Path), bare: true}
	}
	if slices.Contains(r.TransferEncoding, "chunked") {
		return nil, notImplemented("chunked transfer encoding not supported")
	}
	if r.Method != http.MethodPost && r.Method != http.MethodPut && r.ContentLength > 0 {
		return nil, notImplemented("Unexpected content for method '%s'", r.Method)
	}
	ep, uri, found := match(r.Method, path)
	c := &call{Simulator: s, request: r, endpoint: ep, in: values{}, failTask: failTask}
	if !found || !ep.world {
		if err := c.authenticate(); err != nil {
			return nil, err
		}
	}
	if !found {
		return nil, notImplemented("Method '%s %s' not implemented", r.Method, path)
	}
	if ep.ticketOnly && c.who.token != "" {
		return nil, &refusal{status: http.StatusForbidden, message: fmt.Sprintf("URI '%s' not available with API token, need proper ticket.", path)}
	}
	if err := c.readParameters(uri); err != nil {
		return nil, err
	}
	return c.run()
}

// run checks privileges and parameters and calls the endpoint.
func (c *call) run() (any, error) {
	if c.endpoint.unlocked {
		c.mu.Lock()
		err := c.admit()
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return c.endpoint.handle(c)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.admit(); err != nil {
		return nil, err
	}
	data, err := c.endpoint.handle(c)
	if c.request.Method != http.MethodGet && err == nil {
		c.save()
	}
	return data, err
}

// admit makes the checks that come before an endpoint's own.
func (c *call) admit() error {
	if c.endpoint.check != nil {
		if err := c.endpoint.check(c); err != nil {
			return err
		}
	}
	if name := c.str("node"); strings.HasPrefix(c.endpoint.path, "/nodes/{node}") && reNodeName.MatchString(name) {
		n, ok := c.node(name)
		if !ok {
			return die("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
		}
		if n.Offline {
			return &refusal{status: 595, message: "No route to host", bare: true}
		}
	}
	if c.endpoint.upload {
		// The form is read and checked by the endpoint.
		return nil
	}
	return c.endpoint.schema.check(c.in)
}

// readParameters collects path, query and body parameters.
func (c *call) readParameters(uri map[string]string) error {
	add := func(name string, vs []string) error {
		if want, ok := uri[name]; ok {
			if len(vs) != 1 || vs[0] != want {
				return invalid(name, "duplicate parameter (already defined in URI) with conflicting values!")
			}
		}
		c.in[name] = vs
		return nil
	}
	for name, v := range uri {
		c.in[name] = []string{v}
	}
	query, err := url.ParseQuery(c.request.URL.RawQuery)
	if err != nil {
		return &refusal{status: http.StatusBadRequest, message: "Bad Request"}
	}
	for name, vs := range query {
		if err := add(name, vs); err != nil {
			return err
		}
	}
	if c.endpoint.upload {
		return nil
	}
	body, err := c.readBody()
	if err != nil {
		return err
	}
	for name, vs := range body {
		if err := add(name, vs); err != nil {
			return err
		}
	}
	return nil
}

// readBody reads a form or a JSON object.
func (c *call) readBody() (values, error) {
	r := c.request
	if r.Method != http.MethodPost && r.Method != http.MethodPut || r.ContentLength == 0 {
		return nil, nil
	}
	if r.ContentLength > maxForm {
		return nil, notImplemented("for data too large")
	}
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxForm))
	if err != nil {
		return nil, die("reading the body: %v", err)
	}
	ctype, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch ctype {
	case "application/json":
		return c.readJSON(raw)
	case "application/x-www-form-urlencoded", "":
		form, err := url.ParseQuery(string(raw))
		if err != nil {
			return nil, &refusal{status: http.StatusBadRequest, message: "Bad Request"}
		}
		return values(form), nil
	}
	return nil, &refusal{status: http.StatusVariantAlsoNegotiates, message: fmt.Sprintf("upload 'Content-Type '%s' not implemented", ctype)}
}

// readJSON turns a JSON object into parameters.
func (c *call) readJSON(raw []byte) (values, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var obj map[string]any
	if err := dec.Decode(&obj); err != nil {
		return nil, &refusal{status: http.StatusBadRequest, message: "malformed JSON string"}
	}
	out := values{}
	for name, v := range obj {
		switch v := v.(type) {
		case nil:
		case []any:
			list := []string{}
			for _, e := range v {
				list = append(list, scalar(e))
			}
			out[name] = list
		default:
			out[name] = []string{scalar(v)}
		}
	}
	return out, nil
}

func scalar(v any) string {
	switch v := v.(type) {
	case bool:
		if v {
			return "1"
		}
		return "0"
	case string:
		return v
	case json.Number:
		return v.String()
	default:
		return fmt.Sprint(v)
	}
}

// has says whether a parameter was given.
func (c *call) has(name string) bool { return len(c.in[name]) > 0 }

// str answers a parameter, or "".
func (c *call) str(name string) string {
	if vs := c.in[name]; len(vs) > 0 {
		return vs[0]
	}
	return ""
}

// integer answers a checked integer parameter, or 0.
func (c *call) integer(name string) int {
	n, _ := strconv.Atoi(c.str(name))
	return n
}

// boolean answers a checked boolean parameter, or def.
func (c *call) boolean(name string, def bool) bool {
	if !c.has(name) {
		return def
	}
	return c.str(name) == "1"
}

// match finds the endpoint of a method and an escaped path. Path parameters are
// unescaped.
func match(method, path string) (*endpoint, map[string]string, bool) {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	for i := range endpoints {
		ep := &endpoints[i]
		if ep.method != method {
			continue
		}
		if params, ok := ep.match(segments); ok {
			return ep, params, true
		}
	}
	return nil, nil, false
}

func (ep *endpoint) match(segments []string) (map[string]string, bool) {
	pattern := strings.Split(strings.Trim(ep.path, "/"), "/")
	params := map[string]string{}
	for i, p := range pattern {
		if p == "{volume}" && i < len(segments) {
			// A volume's id holds slashes that clients do not always escape.
			v, err := url.PathUnescape(strings.Join(segments[i:], "/"))
			params["volume"] = v
			return params, err == nil
		}
		if i >= len(segments) {
			return nil, false
		}
		if name, ok := strings.CutPrefix(p, "{"); ok {
			v, err := url.PathUnescape(segments[i])
			if err != nil {
				return nil, false
			}
			params[strings.TrimSuffix(name, "}")] = v
		} else if p != segments[i] {
			return nil, false
		}
	}
	return params, len(segments) == len(pattern)
}
