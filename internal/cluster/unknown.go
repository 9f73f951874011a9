// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"regexp"
	"slices"
)

// The stand-in of a value is its name between two characters of Unicode's
// private use area: YAML takes it as a string wherever it stands, quoted or not,
// no text of a user's holds it by chance, and each check that comes across it
// knows whose value it waits for.
const (
	unknownStart = "\uE000"
	unknownEnd   = "\uE001"
)

var unknownMatch = regexp.MustCompile(unknownStart + "([A-Za-z0-9_]+)" + unknownEnd)

// Unknown stands for the value of the substitution name, which is not known yet.
// The field where it stands gives it its type: no check takes it for a value.
func Unknown(name string) string { return unknownStart + name + unknownEnd }

// unknownIn answers the names of the substitutions that a parsed value waits
// for, sorted and each once.
func unknownIn(value any) []string {
	var names []string
	walkTexts(value, func(text string) {
		for _, match := range unknownMatch.FindAllStringSubmatch(text, -1) {
			names = append(names, match[1])
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// walkTexts calls visit for each string in a parsed value, keys included.
func walkTexts(value any, visit func(string)) {
	switch v := value.(type) {
	case string:
		visit(v)
	case []any:
		for _, item := range v {
			walkTexts(item, visit)
		}
	case map[string]any:
		for key, item := range v {
			visit(key)
			walkTexts(item, visit)
		}
	}
}

// withoutUnknown copies a parsed value and leaves out what waits for a
// substitution.
func withoutUnknown(value any) any {
	switch v := value.(type) {
	case []any:
		kept := make([]any, 0, len(v))
		for _, item := range v {
			if text, ok := item.(string); ok && len(unknownIn(text)) > 0 {
				continue
			}
			kept = append(kept, withoutUnknown(item))
		}
		return kept
	case map[string]any:
		kept := make(map[string]any, len(v))
		for key, item := range v {
			if text, ok := item.(string); len(unknownIn(key)) > 0 || ok && len(unknownIn(text)) > 0 {
				continue
			}
			kept[key] = withoutUnknown(item)
		}
		return kept
	}
	return value
}

// showUnknown writes stand-ins as the user wrote them.
func showUnknown(text string) string { return unknownMatch.ReplaceAllString(text, "$${$1}") }
