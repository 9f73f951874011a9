// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"errors"
	"io"
	"maps"
	"strings"

	"gopkg.in/yaml.v3"
)

// talosConfig is a TalosConfigSpec (CABPT) somewhere in an object, with its
// patches.
type talosConfig struct {
	// spec is the mapping with talosVersion, generateType and the patches.
	spec         field
	controlPlane bool
	// parts are the documents of all patches, each as far as it says something.
	parts []field
}

// talosConfigs answers the Talos configurations of control planes and workers.
func (c *checker) talosConfigs() []talosConfig {
	var configs []talosConfig
	for _, o := range c.objects(talosPlaneKind) {
		configs = append(configs, talosConfig{spec: o.at("spec.controlPlaneConfig.controlplane"), controlPlane: true})
	}
	for _, o := range c.objects(talosTemplateKind) {
		configs = append(configs, talosConfig{spec: o.at("spec.template.spec")})
	}
	for i := range configs {
		configs[i].parts = append(c.strategicParts(configs[i].spec), c.jsonParts(configs[i].spec)...)
	}
	return configs
}

// strategicParts reads strategic merge patches: YAML texts of one or more
// documents. Their fields get paths and lines of their own.
func (c *checker) strategicParts(spec field) []field {
	var parts []field
	for _, f := range spec.at("strategicPatches").items() {
		text, ok := f.value.(string)
		if !ok {
			c.text(f)
			continue
		}
		before := f.object.places[f.path].content - 1
		decoder := yaml.NewDecoder(strings.NewReader(text))
		for {
			part, err := nextPart(decoder, f, before)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				c.wrongPatch(f, before, err)
				break
			}
			parts = append(parts, part)
		}
	}
	return parts
}

// nextPart reads the next document of a patch in f, before whose text there are
// so many lines.
func nextPart(decoder *yaml.Decoder, f field, before int) (field, error) {
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil {
		return field{}, err
	}
	var content map[string]any
	if err := document.Decode(&content); err != nil {
		return field{}, err
	}
	part := field{object: f.object, path: f.path + ": ", value: normal(content)}
	part.object.places = maps.Clone(f.object.places)
	addPlaces(document.Content[0], part.path, before, part.object.places)
	return part, nil
}

func (c *checker) wrongPatch(f field, before int, err error) {
	line, message := yamlProblem(err)
	p := f.problem(Wrong, "this is not YAML of a Talos machine configuration: %s", message)
	p.Line = f.object.origins.of(before + line)
	c.add(p)
}

// normal turns the numbers of a YAML parser into those of unstructured content.
func normal(value any) any {
	switch v := value.(type) {
	case int:
		return int64(v)
	case []any:
		for i := range v {
			v[i] = normal(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = normal(v[key])
		}
	}
	return value
}

// jsonParts reads the operations of JSON patches (RFC 6902) that add or replace,
// each as the configuration that it sets.
func (c *checker) jsonParts(spec field) []field {
	var parts []field
	for _, f := range spec.at("configPatches").items() {
		operation, _ := f.at("op").value.(string)
		pointer, _ := f.at("path").value.(string)
		if operation != "add" && operation != "replace" || !strings.HasPrefix(pointer, "/") {
			continue
		}
		value := f.at("value").value
		steps := strings.Split(pointer[1:], "/")
		for i := len(steps) - 1; i >= 0; i-- {
			step := strings.NewReplacer("~1", "/", "~0", "~").Replace(steps[i])
			if isIndex(step) {
				value = []any{value}
			} else {
				value = map[string]any{step: value}
			}
		}
		parts = append(parts, field{object: f.object, path: f.path + ": ", value: value})
	}
	return parts
}

func isIndex(step string) bool {
	return step == "-" || step != "" && strings.Trim(step, "0123456789") == ""
}

// all answers what the parts set at a path, in their order. Only the documents
// of the main configuration, which have no kind, count.
func (t talosConfig) all(path string) []field {
	var found []field
	for _, part := range t.parts {
		if f := part.at(path); f.set() && !part.at("kind").set() {
			found = append(found, f)
		}
	}
	return found
}

// last answers what holds at a path after all patches; a later one wins.
func (t talosConfig) last(path string) (field, bool) {
	found := t.all(path)
	if len(found) == 0 {
		return field{}, false
	}
	return found[len(found)-1], true
}

// virtualAddresses answers where the patches set one: on interfaces, on their
// VLANs, and in documents of the kind Layer2VIPConfig (Talos v1.12), which are
// named by it.
func (t talosConfig) virtualAddresses() []field {
	var found []field
	for _, interfaces := range t.all("machine.network.interfaces") {
		for _, item := range interfaces.items() {
			found = append(found, item.at("vip.ip"))
			for _, vlan := range item.at("vlans").items() {
				found = append(found, vlan.at("vip.ip"))
			}
		}
	}
	for _, part := range t.parts {
		if part.at("kind").value == "Layer2VIPConfig" {
			found = append(found, part.at("name"))
		}
	}
	kept := found[:0]
	for _, f := range found {
		if f.set() {
			kept = append(kept, f)
		}
	}
	return kept
}
