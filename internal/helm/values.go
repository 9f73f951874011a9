// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"sigs.k8s.io/yaml"
)

// MergeValues reads YAML documents and merges them as the helm command does
// with several --values: a later one wins, maps are merged, lists and scalars
// are replaced. Errors name the document, from 1, and never quote it.
func MergeValues(documents []string) (map[string]any, error) {
	merged := map[string]any{}
	for number, document := range documents {
		values := map[string]any{}
		if err := yaml.Unmarshal([]byte(document), &values); err != nil {
			return nil, fmt.Errorf("values document %d is not a YAML mapping: %s", number+1, position(err))
		}
		merged = mergeMaps(merged, values)
	}
	return merged, nil
}

// position keeps the line number of a YAML error and drops the rest, which
// quotes the content.
func position(err error) string {
	text := err.Error()
	if at := strings.Index(text, "line "); at >= 0 {
		line := text[at:]
		if end := strings.IndexByte(line, ':'); end >= 0 {
			return "see " + line[:end]
		}
	}
	return "check its syntax"
}

func mergeMaps(below, above map[string]any) map[string]any {
	merged := make(map[string]any, len(below)+len(above))
	for key, value := range below {
		merged[key] = value
	}
	for key, value := range above {
		over, overIsMap := value.(map[string]any)
		under, underIsMap := merged[key].(map[string]any)
		if overIsMap && underIsMap {
			value = mergeMaps(under, over)
		}
		merged[key] = value
	}
	return merged
}

// HashValues answers a digest of values that is the same before and after they
// went through a release's record. Its 32 hexadecimal digits fit a label.
func HashValues(values map[string]any) string { return hash(canonical(values)) }

// hashConfig answers a digest of all that tells one configuration of a release
// from another.
func hashConfig(chart *helmchart.Metadata, values map[string]any) string {
	return hash([]byte(chart.Name + "\x00" + chart.Version + "\x00" + string(canonical(values))))
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// canonical is JSON with sorted keys. Values come from YAML or JSON, so that
// they always have one.
func canonical(values map[string]any) []byte {
	if len(values) == 0 {
		return []byte("{}")
	}
	data, err := json.Marshal(values)
	if err != nil {
		return []byte(fmt.Sprint(values))
	}
	return data
}
