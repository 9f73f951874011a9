// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/strvals"
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
		if several(document) {
			return nil, fmt.Errorf("values document %d holds several YAML documents, of which only the first would count: make each an element of its own", number+1)
		}
		merged = mergeMaps(merged, values)
	}
	return merged, nil
}

// boundary is a line that begins or ends a YAML document.
var boundary = regexp.MustCompile(`(?m)^(---|\.\.\.)(\s|$)`)

// several says whether there is anything after the first of several documents.
func several(text string) bool {
	if !boundary.MatchString(text) {
		return false
	}
	filled := 0
	for _, document := range boundary.Split(text, -1) {
		var content any
		if yaml.Unmarshal([]byte(document), &content) != nil || content != nil {
			filled++
		}
	}
	return filled > 1
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

// Set is one value that is given by its path, as with the helm command's --set.
type Set struct {
	// Name is the path, such as a.b[0].c.
	Name string
	// Value is the value's text. List stands in its place where it is not nil.
	Value string
	List  []string
	// Kind says how the text is read: [SetAuto], [SetString] or [SetLiteral].
	Kind string
}

// How the text of a [Set] is read.
const (
	// SetAuto makes numbers, booleans and null of what looks like them, and reads
	// {a,b} as a list.
	SetAuto = "auto"
	// SetString takes the text as a string, with \\ before a comma.
	SetString = "string"
	// SetLiteral takes every character as it stands.
	SetLiteral = "literal"
)

// SetValues puts single values over others, in their order. Errors name the
// path and never quote a value.
func SetValues(values map[string]any, sets []Set) error {
	for _, set := range sets {
		if set.Name == "" || strings.ContainsAny(set.Name, "=,") {
			return fmt.Errorf("%q is not the path of a value such as a.b[0].c", set.Name)
		}
		parse, text := strvals.ParseInto, set.Value
		switch {
		case set.List != nil && len(set.List) == 0:
			parse, text = strvals.ParseJSON, "[]"
		case set.List != nil:
			escaped := make([]string, len(set.List))
			for i, element := range set.List {
				escaped[i] = listEscapes.Replace(element)
			}
			text = "{" + strings.Join(escaped, ",") + "}"
		case set.Kind == SetString:
			parse = strvals.ParseIntoString
		case set.Kind == SetLiteral:
			parse = strvals.ParseLiteralInto
		}
		if err := parse(set.Name+"="+text, values); err != nil {
			return fmt.Errorf("the value of %s cannot be set: check its path and its commas and braces, which need a \\ before them", set.Name)
		}
	}
	return nil
}

// listEscapes writes an element so that it stays one in a list.
var listEscapes = strings.NewReplacer(`\`, `\\`, ",", `\,`, "{", `\{`, "}", `\}`)

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
	return hash([]byte(chart.Name + "\x00" + chart.Version + "\x00" + chart.Annotations[digestAnnotation] + "\x00" + string(canonical(values))))
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
