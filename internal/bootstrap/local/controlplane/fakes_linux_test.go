// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The tests of the process handling put this test binary in the place of the
// four programs: called by a program's name it listens where the arguments say,
// with the certificates they name, and writes down when it starts and ends.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler":
		if err := fakeProgram(name, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "fatal:", err)
			os.Exit(1)
		}
		os.Exit(0)
	case "starter":
		starter()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func fakeProgram(name string, args []string) error {
	flags := map[string]string{}
	for _, arg := range args {
		key, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		flags[key] = value
	}
	note("start " + name + " " + fmt.Sprint(os.Getpid()))
	if _, err := os.Stat(name + "-fails"); err == nil {
		return fmt.Errorf("%s cannot go on", name)
	}
	address, cert, key, shared := net.JoinHostPort(flags["bind-address"], flags["secure-port"]), flags["tls-cert-file"], flags["tls-private-key-file"], flags["permit-port-sharing"]
	if name == "etcd" {
		client, err := url.Parse(flags["listen-client-urls"])
		if err != nil {
			return err
		}
		address, cert, key, shared = client.Host, flags["cert-file"], flags["key-file"], flags["socket-reuse-port"]
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if shared == "true" {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
		})
	}}
	l, err := lc.Listen(context.Background(), "tcp", address)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	if _, err := os.Stat(name + "-is-deaf"); err == nil {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(stop, syscall.SIGTERM)
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if _, err := os.Stat(name + "-is-sick"); err == nil {
				http.Error(w, "[-]stomach failed", http.StatusInternalServerError)
			}
		}),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ServeTLS(l, "", "") }()
	select {
	case err := <-failed:
		return err
	case <-stop:
	}
	note("stop " + name)
	return nil
}

// note appends a line to the file events in the working directory, the control
// plane's folder.
func note(line string) {
	file, err := os.OpenFile("events", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if _, err := file.WriteString(line + "\n"); err != nil {
		panic(err)
	}
}

// starter starts a control plane of fakes in the folder CP_DIR and waits to be
// killed.
func starter() {
	dir := os.Getenv("CP_DIR")
	if _, err := Start(context.Background(), fakeConfigIn(dir, filepath.Join(dir, "programs")), nil); err != nil {
		fmt.Println("failed:", err)
		return
	}
	fmt.Println("started")
	select {}
}
