// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	configMapName = "cilium-config"
	configDir     = "/tmp/cilium/config-map"
	// retry is how long is waited before asking again for what is not there.
	retry = time.Second
)

// connection returns the pod's own: its service account, and the API server
// that the chart's environment names.
func connection() (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the API server: %w", err)
	}
	config.UserAgent = "cilium-standin"
	return config, nil
}

func namespace() string { return os.Getenv("CILIUM_K8S_NAMESPACE") }
func nodeName() string  { return os.Getenv("K8S_NODE_NAME") }

// refused tells whether asking again is of no use.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
}

// until calls step until it is done. It stops at what the API server refuses,
// and logs anything else that goes wrong, once for each new message.
func until(ctx context.Context, what string, step func(ctx context.Context) (bool, error)) error {
	last := ""
	for {
		done, err := step(ctx)
		switch {
		case refused(err):
			return fmt.Errorf("%s: %w", what, err)
		case err == nil && done:
			return nil
		case err != nil && err.Error() != last:
			last = err.Error()
			slog.Warn("waiting", "for", what, "error", err)
		case err == nil && last == "":
			last = "not yet"
			slog.Info("waiting", "for", what)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-time.After(retry):
		}
	}
}

// runDebug is cilium-dbg, of which the chart calls two subcommands.
func runDebug(ctx context.Context, args []string) error {
	switch {
	case len(args) > 0 && args[0] == "build-config":
		return buildConfig(ctx)
	case len(args) > 0 && args[0] == "post-uninstall-cleanup":
		return nil // there is no state of eBPF to clean
	}
	return errors.New("only build-config and post-uninstall-cleanup are understood")
}

// buildConfig writes the ConfigMap's values to files named by their keys.
func buildConfig(ctx context.Context) error {
	config, err := connection()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return until(ctx, "reading ConfigMap "+configMapName, func(ctx context.Context) (bool, error) {
		found, err := client.CoreV1().ConfigMaps(namespace()).Get(ctx, configMapName, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if err := os.MkdirAll(configDir, 0o755); err != nil {
			return false, err
		}
		for key, value := range found.Data {
			if err := os.WriteFile(filepath.Join(configDir, key), []byte(value), 0o644); err != nil {
				return false, err
			}
		}
		slog.Info("wrote the configuration", "keys", len(found.Data), "folder", configDir)
		return true, nil
	})
}

// settings are the values of the configuration folder.
type settings struct{ dir string }

// readSettings finds the folder in the arguments.
func readSettings(args []string) (settings, error) {
	for _, arg := range args {
		if dir, ok := strings.CutPrefix(arg, "--config-dir="); ok {
			if _, err := os.Stat(dir); err != nil {
				return settings{}, fmt.Errorf("reading the configuration: %w", err)
			}
			return settings{dir}, nil
		}
	}
	return settings{}, errors.New("there is no --config-dir")
}

// get returns a value, or fallback where there is none.
func (s settings) get(key, fallback string) string {
	content, err := os.ReadFile(filepath.Join(s.dir, key))
	if err != nil || len(content) == 0 {
		return fallback
	}
	return strings.TrimSpace(string(content))
}

// serve answers health checks until the context ends.
func serve(ctx context.Context, address, path string, check func(r *http.Request) error) (wait func() error, err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serving health checks: %w", err)
	}
	handler := http.NewServeMux()
	handler.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if err := check(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	return func() error {
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return ctx.Err()
	}, nil
}
