// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Serving says how the kubelet's API is served.
type Serving struct {
	// Certificate answers the server's certificate at each handshake; nil means
	// that there is no kubelet API.
	Certificate func() (*tls.Certificate, error)
	// ClientCA (PEM) vouches for clients; these have to be of the group
	// system:masters, as the API server's kubelet client is.
	ClientCA []byte
	// Listener is where it is served; nil means port 10250 of the network of
	// hostNetwork pods, which the API server reaches as it reaches pods.
	Listener net.Listener
}

// serve serves the kubelet's API until ctx ends.
func (n *Node) serve(ctx context.Context) error {
	if n.cfg.Serving.Certificate == nil {
		return nil
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(n.cfg.Serving.ClientCA) {
		return errors.New("the authority of the kubelet API's clients is no PEM certificate")
	}
	listener := n.cfg.Serving.Listener
	if listener == nil {
		var err error
		address := net.JoinHostPort(n.cfg.SandboxAddress.String(), strconv.Itoa(kubeletPort))
		if listener, err = n.self.Listen(ctx, "tcp", address); err != nil {
			return fmt.Errorf("serving the kubelet's API: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", n.containerLogs)
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
			GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return n.cfg.Serving.Certificate() },
			VerifyConnection: mastersOnly,
		},
	}
	n.running.Go(func() {
		// The error is that of the listener's end.
		_ = server.ServeTLS(listener, "", "")
	})
	n.running.Go(func() {
		<-ctx.Done()
		_ = server.Close()
	})
	return nil
}

func mastersOnly(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 || !slices.Contains(state.PeerCertificates[0].Subject.Organization, "system:masters") {
		return errors.New("the kubelet's API serves the group system:masters only")
	}
	return nil
}

// containerLogs answers GET /containerLogs/{namespace}/{pod}/{container}, the
// kubelet's endpoint behind pods/log.
func (n *Node) containerLogs(w http.ResponseWriter, r *http.Request) {
	worker := n.byName(r.PathValue("namespace"), r.PathValue("pod"))
	if worker == nil {
		http.Error(w, fmt.Sprintf("pod %q does not exist", r.PathValue("pod")), http.StatusNotFound)
		return
	}
	c := worker.find(r.PathValue("container"))
	if c == nil {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", r.PathValue("container"), r.PathValue("pod")), http.StatusNotFound)
		return
	}
	options, err := parseLogOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	attempt := c.attemptNumber() - 1
	if options.previous {
		attempt--
	}
	if attempt < 0 {
		http.Error(w, fmt.Sprintf("container %q in pod %q has no log yet", c.spec.Name, r.PathValue("pod")), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := &flusher{w: w}
	err = readLog(r.Context(), c.logPath(attempt), options, out, func() bool { return c.writesLog(attempt) })
	if err != nil && !out.written {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// writesLog says whether more may come in the log of that attempt.
func (c *container) writesLog(attempt int) bool {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.running != nil && c.attempt-1 == attempt
}

func (n *Node) byName(namespace, name string) *worker {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		if pod := w.object(); pod.Namespace == namespace && pod.Name == name {
			return w
		}
	}
	return nil
}

// flusher sends every write at once, so that a followed log shows.
type flusher struct {
	w       http.ResponseWriter
	written bool
}

func (f *flusher) Write(p []byte) (int, error) {
	f.written = true
	written, err := f.w.Write(p)
	if flush, ok := f.w.(http.Flusher); ok {
		flush.Flush()
	}
	return written, err
}

func parseLogOptions(r *http.Request) (logOptions, error) {
	q := r.URL.Query()
	o := logOptions{tail: -1, limit: -1}
	for name, target := range map[string]*bool{"follow": &o.follow, "previous": &o.previous, "timestamps": &o.timestamps} {
		if text := q.Get(name); text != "" {
			value, err := strconv.ParseBool(text)
			if err != nil {
				return o, fmt.Errorf("%s: %w", name, err)
			}
			*target = value
		}
	}
	for name, target := range map[string]*int64{"tailLines": &o.tail, "limitBytes": &o.limit} {
		if text := q.Get(name); text != "" {
			value, err := strconv.ParseInt(text, 10, 64)
			if err != nil || value < 0 {
				return o, fmt.Errorf("%s: %q is not a number of at least 0", name, text)
			}
			*target = value
		}
	}
	if text := q.Get("sinceSeconds"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return o, fmt.Errorf("sinceSeconds: %w", err)
		}
		o.since = time.Now().Add(-time.Duration(seconds) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		var since metav1.Time
		if err := since.UnmarshalQueryParameter(text); err != nil {
			return o, fmt.Errorf("sinceTime: %w", err)
		}
		o.since = since.Time
	}
	return o, nil
}
