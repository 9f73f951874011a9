// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package artifacts

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
)

// Cilium's images at the references of its chart, and that of the Talos cloud
// controller manager. All four are stand-ins: see the programs' own
// documentation in internal/lab/images. The chart names Envoy's image by its
// digest too, which a stand-in cannot have: an image store that serves the lab
// must find it by the tag.
const (
	CiliumVersion       = "1.19.6"
	ciliumImage         = "quay.io/cilium/cilium:v" + CiliumVersion
	ciliumOperatorImage = "quay.io/cilium/operator-generic:v" + CiliumVersion
	ciliumEnvoyImage    = "quay.io/cilium/cilium-envoy:v1.36.9-1782267392-edeb3f2af56c37c407efa1f63f0b32f595399bbc"
	talosCCMImage       = "ghcr.io/siderolabs/talos-cloud-controller-manager:v1.12.0"
)

// standinPath is where the program lies in Cilium's images.
const standinPath = "/usr/bin/cilium-standin"

func standinLinks(names ...string) []entry {
	var entries []entry
	for _, name := range names {
		entries = append(entries, entry{path: name, mode: 0o777, link: standinPath})
	}
	return entries
}

// placeholder is a program that is installed on nodes and never run there.
const placeholder = "#!/bin/sh\necho 'this is a stand-in of the lab' >&2\nexit 1\n"

// agentFiles has the commands that the chart's containers run and the tools
// that their scripts call. The scripts take the place of Cilium's own of the
// same names.
func agentFiles(context.Context, *builder) ([]entry, error) {
	entries := standinLinks("/bin/bash", "/bin/sh")
	for _, name := range []string{
		"basename", "bash", "cat", "cilium-agent", "cilium-dbg", "cp", "find", "grep", "iptables-restore",
		"iptables-save", "mkdir", "mount", "mv", "nsenter", "rm", "sh",
	} {
		entries = append(entries, standinLinks(path.Join("/usr/bin", name))...)
	}
	script := func(name, text string) entry { return entry{path: name, mode: 0o755, content: []byte(text)} }
	return append(entries,
		script("/usr/bin/cilium-sysctlfix", placeholder),
		script("/opt/cni/bin/cilium-cni", placeholder),
		script("/cni/loopback", placeholder),
		script("/init-container.sh", `#!/bin/sh
# Cleans what an earlier Cilium left on the node, where the configuration asks for it.
if [ "$CILIUM_ALL_STATE" = true ]; then cilium-dbg post-uninstall-cleanup -f --all-state; fi
if [ "$CILIUM_BPF_STATE" = true ]; then cilium-dbg post-uninstall-cleanup -f --bpf-state; fi
`),
		script("/install-plugin.sh", `#!/bin/bash
# Installs the CNI plugins on the node, each whole or not at all.
set -e
to=/host/opt/cni/bin
mkdir -p "$to"
for plugin in /cni/loopback /opt/cni/bin/cilium-cni; do
  name=$(basename "$plugin")
  cp "$plugin" "$to/.$name.new"
  mv "$to/.$name.new" "$to/$name"
done
`),
		script("/cni-uninstall.sh", `#!/bin/bash
# Takes the CNI configuration away before the agent ends, where it is told to.
if [ "$(cat /tmp/cilium/config-map/cni-uninstall 2>/dev/null || true)" != true ]; then exit 0; fi
find /host/etc/cni/net.d -maxdepth 1 -type f -name '*cilium*' -and \( -name '*.conf' -or -name '*.conflist' \) -delete
`)), nil
}

// operatorFiles has the operator's command and Cilium's own CRDs.
func operatorFiles(ctx context.Context, b *builder) ([]entry, error) {
	module, err := b.moduleFiles(ctx, "cilium", "github.com/cilium/cilium")
	if err != nil {
		return nil, err
	}
	crds := filepath.Join(module, "pkg", "k8s", "apis", "cilium.io", "client", "crds")
	files, err := filepath.Glob(filepath.Join(crds, "*", "*.yaml"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("there are no CRDs in %s", crds)
	}
	if err != nil {
		return nil, err
	}
	entries := standinLinks("/usr/bin/cilium-operator-generic")
	for _, file := range files {
		entries = append(entries, entry{path: path.Join("/usr/share/cilium/crds", filepath.Base(file)), mode: 0o644, file: file})
	}
	return entries, nil
}

func envoyFiles(context.Context, *builder) ([]entry, error) {
	return standinLinks("/usr/bin/cilium-envoy-starter"), nil
}
