// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
)

func TestMountPointsInsideReadOnlyVolumesAreMade(t *testing.T) {
	own, host := t.TempDir(), t.TempDir()
	volume, elsewhere := filepath.Join(own, "volumes", "config"), filepath.Join(host, "data")
	for _, dir := range []string{volume, elsewhere} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(host, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := makeNested([]sandbox.Mount{
		{Source: elsewhere, Target: "/var/run/cilium/envoy/sockets"},
		{Source: file, Target: "/var/run/cilium/envoy/log/message"},
		{Source: volume, Target: "/var/run/cilium/envoy/", ReadOnly: true},
		{Source: elsewhere, Target: "/var/run/cilium-other"},
		{Source: elsewhere, Target: "/host", ReadOnly: true},
		{Source: elsewhere, Target: "/host/inside"},
	}, own)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(volume, "sockets")); err != nil || !info.IsDir() {
		t.Errorf("no folder for the mount of a folder: %v", err)
	}
	if info, err := os.Stat(filepath.Join(volume, "log", "message")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("no file for the mount of a file: %v", err)
	}
	if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) != 0 {
		t.Errorf("something was made outside the pod's folder: %v, %v", entries, err)
	}
}
