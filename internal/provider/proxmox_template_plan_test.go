// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/factory"
)

// object is a configuration without its nulls; unknown in it is not known yet.
type object = map[string]any

type unknown struct{}

// planner plans templates by the plugin protocol, without a CLI, a Proxmox VE or
// a configured provider.
type planner struct {
	t       *testing.T
	server  tfprotov6.ProviderServer
	typ     tftypes.Object
	factory *factory.Factory
}

func newPlanner(t *testing.T) *planner {
	t.Helper()
	server, err := testProviders()["capi"]()
	if err != nil {
		t.Fatal(err)
	}
	resp, err := server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{})
	if err != nil {
		t.Fatal(err)
	}
	typ, ok := resp.ResourceSchemas[proxmoxTemplateType].ValueType().(tftypes.Object)
	if !ok {
		t.Fatal("the schema is no object")
	}
	f, err := factory.Start(t.Context(), factory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return &planner{t: t, server: server, typ: typ, factory: f}
}

// value makes a protocol value of this type.
func value(t *testing.T, typ tftypes.Type, v any) tftypes.Value {
	t.Helper()
	switch v := v.(type) {
	case nil:
		return tftypes.NewValue(typ, nil)
	case unknown:
		return tftypes.NewValue(typ, tftypes.UnknownValue)
	case int:
		return tftypes.NewValue(typ, big.NewFloat(float64(v)))
	case tftypes.Value:
		return v
	case []any:
		element := tftypes.Type(tftypes.DynamicPseudoType)
		switch list := typ.(type) {
		case tftypes.List:
			element = list.ElementType
		case tftypes.Set:
			element = list.ElementType
		}
		values := []tftypes.Value{}
		for _, e := range v {
			values = append(values, value(t, element, e))
		}
		return tftypes.NewValue(typ, values)
	case object:
		values := map[string]tftypes.Value{}
		switch o := typ.(type) {
		case tftypes.Map:
			for name, e := range v {
				values[name] = value(t, o.ElementType, e)
			}
		case tftypes.Object:
			for name, attribute := range o.AttributeTypes {
				values[name] = value(t, attribute, v[name])
			}
			for name := range v {
				if _, ok := o.AttributeTypes[name]; !ok {
					t.Fatalf("there is no attribute %s", name)
				}
			}
		}
		return tftypes.NewValue(typ, values)
	default:
		return tftypes.NewValue(typ, v)
	}
}

// plan validates and plans a create, or a change where there is a prior state.
// It answers the planned attributes, those that force a replacement and all
// diagnostics, as far as it came.
func (p *planner) plan(config object, prior *tftypes.Value) (planned map[string]tftypes.Value, replaced []string, diags []*tfprotov6.Diagnostic) {
	p.t.Helper()
	dynamic := func(v tftypes.Value) *tfprotov6.DynamicValue {
		out, err := tfprotov6.NewDynamicValue(p.typ, v)
		if err != nil {
			p.t.Fatal(err)
		}
		return &out
	}
	configured := value(p.t, p.typ, config)
	checked, err := p.server.ValidateResourceConfig(p.t.Context(), &tfprotov6.ValidateResourceConfigRequest{TypeName: proxmoxTemplateType, Config: dynamic(configured)})
	if err != nil {
		p.t.Fatal(err)
	}
	if diags = checked.Diagnostics; len(diags) > 0 {
		return nil, nil, diags
	}
	before, proposed := tftypes.NewValue(p.typ, nil), configured
	if prior != nil {
		before, proposed = *prior, p.proposed(configured, *prior)
	}
	answered, err := p.server.PlanResourceChange(p.t.Context(), &tfprotov6.PlanResourceChangeRequest{
		TypeName: proxmoxTemplateType, Config: dynamic(configured), PriorState: dynamic(before), ProposedNewState: dynamic(proposed),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, at := range answered.RequiresReplace {
		replaced = append(replaced, strings.TrimSuffix(strings.TrimPrefix(at.String(), `AttributeName("`), `")`))
	}
	if answered.PlannedState != nil {
		state, err := answered.PlannedState.Unmarshal(p.typ)
		if err != nil {
			p.t.Fatal(err)
		}
		planned = attributesOf(p.t, state)
	}
	return planned, replaced, answered.Diagnostics
}

// proposed is the configuration with the prior values of what it leaves to the
// provider, as Terraform proposes it.
func (p *planner) proposed(configured, prior tftypes.Value) tftypes.Value {
	out := attributesOf(p.t, configured)
	computed := []string{
		"id", "vm_id", "vm_ids", "uuids", "node_tags", "image_transfer", "schematic_id", "image_url", "image_id", "instance", "phase", "name", "agent", "machine",
		"disk_size", "disk", "bios", "pre_enrolled_keys", "tpm", "cpu_type", "cores", "sockets", "numa", "memory", "os_type", "scsi_controller", "serial", "rng",
		"start_on_boot", "protection", "network_devices", "keep_image", "upload_image",
	}
	for name, old := range attributesOf(p.t, prior) {
		if out[name].IsNull() && slices.Contains(computed, name) {
			out[name] = old
		}
	}
	return tftypes.NewValue(p.typ, out)
}

func attributesOf(t *testing.T, v tftypes.Value) map[string]tftypes.Value {
	t.Helper()
	out := map[string]tftypes.Value{}
	if err := v.As(&out); err != nil {
		t.Fatal(err)
	}
	return maps.Clone(out) // the value keeps its own
}

// made is the state after a plan has been carried out on the nodes, with ids
// from 100.
func (p *planner) made(planned map[string]tftypes.Value, nodes ...string) *tftypes.Value {
	p.t.Helper()
	ids, uuids, id := object{}, object{}, []string{}
	for i, node := range nodes {
		ids[node], uuids[node] = 100+i, fmt.Sprintf("00000000-0000-0000-0000-%012d", i)
		id = append(id, fmt.Sprintf("%s/%d", node, 100+i))
	}
	fixed := object{"id": strings.Join(id, ","), "vm_ids": ids, "uuids": uuids, "instance": "i", "disk_size": 2, "image_transfer": object{}, "vm_id": 100}
	out := map[string]tftypes.Value{}
	for name, v := range planned {
		out[name] = v
		if f, ok := fixed[name]; ok && !v.IsKnown() {
			out[name] = value(p.t, p.typ.AttributeTypes[name], f)
		} else if !v.IsFullyKnown() {
			out[name] = tftypes.NewValue(p.typ.AttributeTypes[name], nil)
		}
	}
	state := tftypes.NewValue(p.typ, out)
	return &state
}

// talos is a template with the guest agent, changed as given.
func (p *planner) talos(change object) object {
	config := object{
		"node_name": "pve1", "storage": "local-lvm",
		"talos": object{"version": "v1.13.7", "extensions": []any{"siderolabs/qemu-guest-agent"}, "factory_url": p.factory.URL()},
	}
	return changed(config, change)
}

// changed answers config with the attributes of change; those of talos are
// changed one by one.
func changed(config, change object) object {
	out := object{}
	for name, v := range config {
		out[name] = v
	}
	for name, v := range change {
		inner, isObject := v.(object)
		if before, ok := out[name].(object); ok && isObject && name == "talos" {
			v = changed(before, inner)
		}
		if v == nil {
			delete(out, name)
			continue
		}
		out[name] = v
	}
	return out
}

func diagnosticText(diags []*tfprotov6.Diagnostic, severity tfprotov6.DiagnosticSeverity) string {
	var out []string
	for _, d := range diags {
		if d.Severity == severity {
			out = append(out, fmt.Sprintf("%s: %s (at %v)", d.Summary, d.Detail, d.Attribute))
		}
	}
	return strings.Join(out, "\n")
}

// A plan, which needs no Proxmox VE, refuses what cannot work.
func TestBadTemplatesAreRefusedAtPlan(t *testing.T) {
	p := newPlanner(t)
	remote := func(change object) object {
		return changed(object{"node_name": "pve1", "storage": "local-lvm", "url": "https://images.example/x.qcow2"}, change)
	}
	sum := "sha256:" + strings.Repeat("ab", 32)
	folder := t.TempDir()
	tests := []struct {
		name   string
		config object
		want   string
	}{
		{"no source", remote(object{"url": nil}), "one (and only one) of"},
		{"two sources", remote(object{"file": "x.qcow2"}), "only one"},
		{"a Talos image and a URL", p.talos(object{"url": "https://images.example/x.qcow2"}), "only one"},
		{"no node", p.talos(object{"node_name": nil}), "one (and only one) of"},
		{"a node and nodes", p.talos(object{"node_names": []any{"pve1"}}), "only one"},
		{"no nodes", p.talos(object{"node_name": nil, "node_names": []any{}}), "at least 1"},
		{"an address for a node", p.talos(object{"node_name": "pve1.example:8006"}), "is not the name of a node"},
		{"an address among nodes", p.talos(object{"node_name": nil, "node_names": []any{"pve1", "https://pve2"}}), "is not the name of a node"},
		{"a volume for a storage", p.talos(object{"storage": "local:import"}), "is not the name of a storage"},
		{"an import storage of one letter", p.talos(object{"import_storage": "x"}), "is not the name of a storage"},
		{"a version without v", p.talos(object{"talos": object{"version": "1.13.7"}}), "is not a Talos version"},
		{"a version that is none", p.talos(object{"talos": object{"version": "latest"}}), "is not a Talos version"},
		{"a version that no factory builds", p.talos(object{"talos": object{"version": "v1.1.9"}}), "older than v1.2.0"},
		{"a version that this factory has not", p.talos(object{"talos": object{"version": "v1.13.99"}}), "Talos v1.13.99: not served"},
		{"an extension that this factory has not", p.talos(object{"talos": object{"extensions": []any{"siderolabs/nope"}}}), "Extension siderolabs/nope for Talos v1.13.7: not served"},
		{"an extension without an owner", p.talos(object{"talos": object{"extensions": []any{"qemu-guest-agent"}}}), `owner/name`},
		{"an empty list of extensions", p.talos(object{"talos": object{"extensions": []any{}}}), "at least 1"},
		{"an empty kernel argument", p.talos(object{"talos": object{"extra_kernel_args": []any{""}}}), "at least 1"},
		{"a meta key beyond a byte", p.talos(object{"talos": object{"meta": []any{object{"key": 256, "value": "x"}}}}), "between 0 and 255"},
		{"a meta key twice", p.talos(object{"talos": object{"meta": []any{object{"key": 12, "value": "x"}, object{"key": 12, "value": "y"}}}}), "key 12 is given twice"},
		{"an overlay without a name", p.talos(object{"talos": object{"overlay": object{"image": "siderolabs/sbc-raspberrypi", "name": ""}}}), "at least 1"},
		{"an architecture that Talos has not", p.talos(object{"talos": object{"architecture": "riscv64"}}), "amd64"},
		{"a factory without a scheme", p.talos(object{"talos": object{"factory_url": "factory.talos.dev"}}), "want the form"},
		{"a schematic id that is too short", p.talos(object{"talos": object{"extensions": nil, "schematic_id": "abc"}}), "64 lower-case hexadecimal digits"},
		{"a schematic id that this factory has not", p.talos(object{"talos": object{"extensions": nil, "schematic_id": strings.Repeat("ab", 32)}}), "not served by the Image Factory"},
		{"a schematic id and extensions", p.talos(object{"talos": object{"schematic_id": agentSchematic}}), "schematic_id names a finished schematic"},
		{"a schematic id and kernel arguments", p.talos(object{"talos": object{"extensions": nil, "extra_kernel_args": []any{"x"}, "schematic_id": agentSchematic}}), "Unable to add extra_kernel_args"},
		{"Secure Boot without UEFI", p.talos(object{"bios": "seabios", "talos": object{"secure_boot": true}}), "The firmware seabios has none"},
		{"a checksum of a Talos image", p.talos(object{"checksum": sum}), "whose bytes differ from build to build"},
		{"a format of a Talos image", p.talos(object{"image_format": "raw"}), "Unable to use image_format"},
		{"a URL of another scheme", remote(object{"url": "ftp://images.example/x.qcow2"}), "is not of the form https://"},
		{"a URL with a password", remote(object{"url": "https://me:geheim@images.example/x.qcow2"}), "user name or password"},
		{"a URL whose ending tells nothing", remote(object{"url": "https://images.example/x.img"}), "does not tell the format"},
		{"an archive", remote(object{"url": "https://images.example/x.ova"}), "take the disk out of them"},
		{"a format that cannot be imported", remote(object{"image_format": "vhdx"}), `"qcow2"`},
		{"a compression that cannot be unpacked", remote(object{"image_compression": "7z"}), `"gz"`},
		{"a checksum without an algorithm", remote(object{"checksum": strings.Repeat("ab", 32)}), "is not of the form"},
		{"a checksum of the wrong length", remote(object{"checksum": "sha512:" + strings.Repeat("ab", 32)}), "sha512 has 128 hexadecimal digits"},
		{"a folder for a file", remote(object{"url": nil, "file": folder, "image_format": "raw"}), "Reading the image file"},
		{"an id below 100", p.talos(object{"vm_id": 99}), "between 100"},
		{"an id for several templates", p.talos(object{"node_name": nil, "node_names": []any{"pve1", "pve2"}, "vm_id": 9000}), "cannot be specified when"},
		{"an id and a range", p.talos(object{"vm_id": 9000, "vm_id_range": object{"start": 9000, "end": 9001}}), "cannot be specified when"},
		{"a range that ends before it starts", p.talos(object{"vm_id_range": object{"start": 9001, "end": 9000}}), "ends (9000) before it starts (9001)"},
		{"a range without room for all nodes", p.talos(object{"node_name": nil, "node_names": []any{"a", "b", "c"}, "vm_id_range": object{"start": 9000, "end": 9001}}), "room for 2 templates"},
		{"a prefix of tags for a single node", p.talos(object{"node_tag_prefix": "x"}), "gets no tag of its own"},
		{"upper case in a prefix of tags", p.talos(object{"node_name": nil, "node_names": []any{"a"}, "node_tag_prefix": "X"}), "is not a tag"},
		{"upper case in a tag", p.talos(object{"tags": []any{"Talos"}}), "is not a tag"},
		{"a blank in a tag", p.talos(object{"tags": []any{"a b"}}), "is not a tag"},
		{"an underscore in a name", p.talos(object{"name": "my_template"}), "is not a DNS name"},
		{"a pool with three slashes", p.talos(object{"pool": "a/b/c/d"}), "is not the name of a pool"},
		{"templates to keep of no family", p.talos(object{"keep_last": 2}), "name in common with family"},
		{"no core", p.talos(object{"cores": 0}), "between 1"},
		{"too little memory", p.talos(object{"memory": 128}), "between 256"},
		{"a balloon larger than the memory", p.talos(object{"memory": 1024, "balloon": 2048}), "more than memory (1024 MiB)"},
		{"a balloon larger than the default memory", p.talos(object{"balloon": 4096}), "more than memory (2048 MiB)"},
		{"a type of CPU with options", p.talos(object{"cpu_type": "host,flags=+aes"}), "is not a type of CPU"},
		{"an unknown firmware", p.talos(object{"bios": "uefi"}), `"ovmf"`},
		{"keys in no firmware", p.talos(object{"bios": "seabios", "pre_enrolled_keys": true}), "has no keys"},
		{"a thread with the wrong controller", p.talos(object{"disk": object{"iothread": true}}), "virtio-scsi-single"},
		{"an unknown cache", p.talos(object{"disk": object{"cache": "fast"}}), `"writeback"`},
		{"a disk of no size", p.talos(object{"disk_size": 0}), "between 1"},
		{"an unknown machine", p.talos(object{"machine": "vax"}), "is not a machine type"},
		{"an unknown display", p.talos(object{"vga": "cga"}), "is not a display"},
		{"a display on a port that is not there", p.talos(object{"vga": "serial0", "serial": false}), "takes away"},
		{"an unknown controller", p.talos(object{"scsi_controller": "nvme"}), `"virtio-scsi-pci"`},
		{"an unknown system", p.talos(object{"os_type": "linux"}), `"l26"`},
		{"a bridge that is none", p.talos(object{"network_devices": []any{object{"bridge": "vmbr0,tag=3"}}}), "is not the name of a bridge"},
		{"a VLAN beyond all", p.talos(object{"network_devices": []any{object{"bridge": "vmbr0", "vlan_id": 4095}}}), "between 1 and 4094"},
		{"an unknown model", p.talos(object{"network_devices": []any{object{"bridge": "vmbr0", "model": "ne2000"}}}), `"virtio"`},
		{"a timeout that is none", p.talos(object{"timeouts": object{"create": "soon"}}), "Time Duration"},
	}
	if len(tests) < 40 {
		t.Fatalf("only %d rows", len(tests))
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, diags := p.plan(tt.config, nil)
			text := strings.ReplaceAll(diagnosticText(diags, tfprotov6.DiagnosticSeverityError), `\"`, `"`)
			if !strings.Contains(strings.Join(strings.Fields(text), " "), tt.want) {
				t.Errorf("the plan says %q, want it to say %q", text, tt.want)
			}
			if strings.Contains(text, "geheim") {
				t.Errorf("the plan tells the password: %s", text)
			}
		})
	}
}

func TestPlansTellWhatTheyKnow(t *testing.T) {
	p := newPlanner(t)
	file := filepath.Join(t.TempDir(), "Ubuntu 2404_kube.qcow2")
	if err := os.WriteFile(file, []byte("an image"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("an image"))
	digits := hex.EncodeToString(sum[:])
	tests := []struct {
		name   string
		config object
		want   object
	}{
		{"a Talos image", p.talos(nil), object{
			"schematic_id": agentSchematic, "image_id": "talos/v1.13.7/amd64/" + agentSchematic, "name": "talos-v1.13.7-ce4c9805", "agent": true, "machine": "q35",
			"image_url": p.factory.URL() + "/image/" + agentSchematic + "/v1.13.7/nocloud-amd64.qcow2", "vm_id": unknown{}, "phase": "ready",
			"node_tags": object{"pve1": []any{}},
		}},
		{"an image for Secure Boot", p.talos(object{"talos": object{"secure_boot": true}}), object{
			"image_url": p.factory.URL() + "/image/" + agentSchematic + "/v1.13.7/nocloud-amd64-secureboot.qcow2", "image_id": "talos/v1.13.7/amd64-secureboot/" + agentSchematic,
		}},
		{"kernel arguments", p.talos(object{"talos": object{"extensions": nil, "extra_kernel_args": []any{"noapic", "nolapic"}}}), object{
			"schematic_id": "9cba8e32753f91a16c1837ab8abf356af021706ef284aef07380780177d9a06c", "agent": false,
		}},
		{"a meta value", p.talos(object{"talos": object{"extensions": nil, "meta": []any{object{"key": 10, "value": "foo"}}}}), object{
			"schematic_id": "d308a2a5ee2277bed5fbaa104fcbc8d59122abfa737df987a95b4ca763459a7f",
		}},
		{"several nodes", p.talos(object{"node_name": nil, "node_names": []any{"PVE2", "pve1"}, "tags": []any{"talos"}}), object{
			"node_tags": object{"pve1": []any{"talos", "talos-v1.13.7-ce4c9805-pve1"}, "PVE2": []any{"talos", "talos-v1.13.7-ce4c9805-pve2"}}, "vm_id": nil, "vm_ids": unknown{},
		}},
		{"several nodes and a prefix", p.talos(object{"node_name": nil, "node_names": []any{"pve1"}, "node_tag_prefix": "golden"}), object{
			"node_tags": object{"pve1": []any{"golden-pve1"}},
		}},
		{"a version that is not known yet", p.talos(object{"talos": object{"version": unknown{}}}), object{
			"schematic_id": unknown{}, "image_id": unknown{}, "image_url": unknown{}, "name": unknown{}, "agent": unknown{}, "phase": "ready",
		}},
		{"a tag that is not known yet", p.talos(object{"tags": []any{unknown{}}}), object{"node_tags": unknown{}, "schematic_id": agentSchematic}},
		{"nodes that are not known yet", p.talos(object{"node_name": nil, "node_names": unknown{}}), object{"node_tags": unknown{}}},
		{"an image at a URL", object{"node_name": "pve1", "storage": "s1", "url": "https://images.example/Rocky_9.6.qcow2.xz?x=y", "bios": "seabios"}, object{
			"image_url": "https://images.example/Rocky_9.6.qcow2.xz?x=y", "schematic_id": nil, "agent": false, "machine": nil, "name": "rocky-9.6-18b95a15",
		}},
		{"an image with a checksum", object{"node_name": "pve1", "storage": "s1", "url": "https://images.example/x.raw", "checksum": "SHA256:" + strings.Repeat("AB", 32)}, object{
			"image_id": "sha256:" + strings.Repeat("ab", 32), "name": "x-abababab",
		}},
		{"a file", object{"node_name": "pve1", "storage": "s1", "file": file}, object{
			"image_id": "sha256:" + digits, "image_url": nil, "name": "ubuntu-2404-kube-" + digits[:8],
		}},
		{"a file that is not there yet", object{"node_name": "pve1", "storage": "s1", "file": file + ".later.qcow2"}, object{"image_id": unknown{}, "name": unknown{}, "image_url": nil}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			planned, _, diags := p.plan(tt.config, nil)
			if len(diags) > 0 {
				t.Fatal(diagnosticText(diags, tfprotov6.DiagnosticSeverityError), diagnosticText(diags, tfprotov6.DiagnosticSeverityWarning))
			}
			for name, want := range tt.want {
				if !planned[name].Equal(value(t, p.typ.AttributeTypes[name], want)) {
					t.Errorf("%s is planned as %s, want %v", name, planned[name], want)
				}
			}
		})
	}
}

func TestASilentFactoryIsAWarning(t *testing.T) {
	p := newPlanner(t)
	_, _, diags := p.plan(p.talos(object{"talos": object{"factory_url": "http://127.0.0.1:1"}}), nil)
	if text := diagnosticText(diags, tfprotov6.DiagnosticSeverityError); text != "" {
		t.Error(text)
	}
	if text := diagnosticText(diags, tfprotov6.DiagnosticSeverityWarning); !strings.Contains(text, "The Image Factory does not answer") {
		t.Errorf("the warning is %q", text)
	}
}

func TestWhatAChangeOfATemplateBrings(t *testing.T) {
	p := newPlanner(t)
	file := filepath.Join(t.TempDir(), "image.qcow2")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fromFile := object{"node_name": "pve1", "storage": "s1", "file": file}
	nodes := func(names ...any) object { return p.talos(object{"node_name": nil, "node_names": names}) }
	sum := "sha256:" + strings.Repeat("ab", 32)
	at := func(address string) object {
		return object{"node_name": "pve1", "storage": "s1", "url": address, "checksum": sum, "name": "golden"}
	}
	tests := []struct {
		name          string
		before, after object
		prepare       func()
		nodes         []string
		replaced      []string
		unknown       []string
	}{
		{name: "nothing", before: p.talos(nil), after: p.talos(nil)},
		{name: "the order of extensions", before: p.talos(object{"talos": object{"extensions": []any{"siderolabs/zfs", "siderolabs/i915"}}}),
			after: p.talos(object{"talos": object{"extensions": []any{"siderolabs/i915", "siderolabs/zfs"}}})},
		{name: "settings", before: p.talos(nil), after: p.talos(object{"cores": 4, "tags": []any{"x"}, "machine": "pc-q35-9.2", "protection": true, "network_devices": []any{}, "keep_image": true})},
		{name: "another version", before: p.talos(nil), after: p.talos(object{"talos": object{"version": "v1.13.6"}}), replaced: []string{"image_id"}},
		{name: "a version that is not known yet", before: p.talos(nil), after: p.talos(object{"talos": object{"version": unknown{}}}), replaced: []string{"image_id"}},
		{name: "another extension", before: p.talos(nil), after: p.talos(object{"talos": object{"extensions": []any{"siderolabs/zfs"}}}), replaced: []string{"image_id"}},
		{name: "the same schematic by its id", before: p.talos(nil), after: p.talos(object{"agent": true, "talos": object{"extensions": nil, "schematic_id": agentSchematic}})},
		{name: "the order of kernel arguments", before: p.talos(object{"talos": object{"extra_kernel_args": []any{"a", "b"}}}), after: p.talos(object{"talos": object{"extra_kernel_args": []any{"b", "a"}}}),
			replaced: []string{"image_id"}},
		{name: "another storage", before: p.talos(nil), after: p.talos(object{"storage": "other"}), replaced: []string{"storage"}},
		{name: "another import storage", before: p.talos(nil), after: p.talos(object{"import_storage": "other", "upload_image": true})},
		{name: "another firmware", before: p.talos(nil), after: p.talos(object{"bios": "seabios"}), replaced: []string{"bios"}},
		{name: "another disk", before: p.talos(nil), after: p.talos(object{"disk_size": 20, "disk": object{"discard": false}}), replaced: []string{"disk", "disk_size"}},
		{name: "another node", before: p.talos(nil), after: p.talos(object{"node_name": "pve2"}), replaced: []string{"node_name"}, unknown: []string{"vm_ids", "vm_id"}},
		{name: "a node more", before: nodes("pve1"), after: nodes("pve1", "pve2"), unknown: []string{"id", "vm_ids", "uuids", "image_transfer"}},
		{name: "a node less", before: nodes("pve1", "pve2"), after: nodes("pve1"), nodes: []string{"pve1", "pve2"}, unknown: []string{"id", "vm_ids", "uuids", "image_transfer"}},
		{name: "a template of several is gone", before: nodes("pve1", "pve2"), after: nodes("pve1", "pve2"), nodes: []string{"pve1"}, unknown: []string{"id", "vm_ids", "uuids", "image_transfer"}},
		{name: "the image moved", before: at("https://a.example/x.qcow2"), after: at("https://b.example/y.qcow2")},
		{name: "the image at the same address is another one", before: at("https://a.example/x.qcow2"), after: changed(at("https://a.example/x.qcow2"), object{"checksum": "sha256:" + strings.Repeat("cd", 32)}),
			replaced: []string{"image_id"}},
		{name: "the file has other content", before: fromFile, after: fromFile, prepare: func() { write("another") }, replaced: []string{"image_id"}},
		{name: "the file is gone", before: fromFile, after: fromFile, prepare: func() { _ = os.Remove(file) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			write("an image")
			planned, _, diags := p.plan(tt.before, nil)
			if len(diags) > 0 {
				t.Fatal(diagnosticText(diags, tfprotov6.DiagnosticSeverityError))
			}
			if tt.nodes == nil {
				tt.nodes = []string{"pve1"}
			}
			state := p.made(planned, tt.nodes...)
			if tt.prepare != nil {
				tt.prepare()
			}
			planned, replaced, diags := p.plan(tt.after, state)
			if text := diagnosticText(diags, tfprotov6.DiagnosticSeverityError); text != "" {
				t.Fatal(text)
			}
			slices.Sort(replaced)
			if !slices.Equal(replaced, tt.replaced) {
				t.Errorf("%v force a replacement, want %v", replaced, tt.replaced)
			}
			for _, name := range []string{"id", "vm_id", "vm_ids", "uuids", "image_transfer"} {
				if wanted := slices.Contains(tt.unknown, name); wanted == planned[name].IsKnown() && (wanted || len(tt.replaced) == 0) {
					t.Errorf("%s is planned as %s, want it unknown: %v", name, planned[name], wanted)
				}
			}
		})
	}
}

func TestAProtectedTemplateCannotBePlannedAway(t *testing.T) {
	p := newPlanner(t)
	for _, tt := range []struct {
		config object
		refuse bool
	}{
		{p.talos(object{"protection": true}), true},
		{p.talos(nil), false},
		{p.talos(object{"protection": true, "keep_last": 1, "family": "talos"}), false},
	} {
		planned, _, diags := p.plan(tt.config, nil)
		if len(diags) > 0 {
			t.Fatal(diagnosticText(diags, tfprotov6.DiagnosticSeverityError))
		}
		state := p.made(planned, "pve1")
		newer := changed(tt.config, object{"talos": object{"version": "v1.13.6"}})
		_, replaced, diags := p.plan(newer, state)
		if text := diagnosticText(diags, tfprotov6.DiagnosticSeverityError); len(replaced) == 0 || tt.refuse != strings.Contains(text, "protection = false and apply, then change what makes a new one") {
			t.Errorf("the plan of a new version replaces for %v and says %q, want a refusal: %v", replaced, text, tt.refuse)
		}
		null := tftypes.NewValue(p.typ, nil)
		dynamic := func(v tftypes.Value) *tfprotov6.DynamicValue {
			out, err := tfprotov6.NewDynamicValue(p.typ, v)
			if err != nil {
				t.Fatal(err)
			}
			return &out
		}
		resp, err := p.server.PlanResourceChange(t.Context(), &tfprotov6.PlanResourceChangeRequest{
			TypeName: proxmoxTemplateType, Config: dynamic(null), PriorState: dynamic(*state), ProposedNewState: dynamic(null),
		})
		if err != nil {
			t.Fatal(err)
		}
		if text := diagnosticText(resp.Diagnostics, tfprotov6.DiagnosticSeverityError); tt.refuse != strings.Contains(text, "protection = false and apply, then destroy") {
			t.Errorf("the plan of a destroy says %q, want a refusal: %v", text, tt.refuse)
		}
	}
}
