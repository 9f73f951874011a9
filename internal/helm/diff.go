// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A diff for people is short.
const (
	// diffLines is how many lines it has at most, and one that counts the rest.
	diffLines = 40
	// diffWidth is how many characters of a value it shows.
	diffWidth = 80
)

// masked stands for a value that is not shown.
const masked = "(masked)"

// secretive matches the names of what is not shown. It rather hides too much.
var secretive = regexp.MustCompile(`(?i)pass|pwd|secret|token|key|cred|auth|cert|private|salt|license|dsn|webhook.?url|connection.?string|stringdata`)

// change is one difference between two trees of values.
type change struct {
	// path leads to it, such as spec.containers[main].image.
	path string
	// before and after are the leaves or subtrees; added and removed say that there
	// is none before or after it.
	before, after  any
	added, removed bool
}

// line writes the change for people; show says whether a value may be shown.
func (c change) line(show func(path string, value any) bool) string {
	value := func(v any) string {
		if !show(c.path, v) {
			return masked
		}
		return brief(v)
	}
	switch {
	case c.added:
		return "+ " + c.path + ": " + value(c.after)
	case c.removed:
		return "- " + c.path + ": " + value(c.before)
	}
	return "~ " + c.path + ": " + value(c.before) + " -> " + value(c.after)
}

func brief(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("a %T", value)
	}
	text := []rune(string(data))
	if len(text) > diffWidth {
		return string(text[:diffWidth]) + "..."
	}
	return string(text)
}

// shorten keeps the first lines and counts the rest.
func shorten(lines []string) []string {
	if len(lines) <= diffLines {
		return lines
	}
	return append(slices.Clone(lines[:diffLines]), fmt.Sprintf("... and %d more", len(lines)-diffLines))
}

// compare answers what differs between two trees, in the order of the paths.
// Elements of lists that have names are matched by name, others by position.
func compare(path string, before, after any) []change {
	if reflect.DeepEqual(before, after) || sameNumber(before, after) {
		return nil
	}
	was, wasMap := before.(map[string]any)
	is, isMap := after.(map[string]any)
	if wasMap && isMap {
		return compareMaps(was, is, func(key string) string {
			if strings.ContainsAny(key, "./[]") {
				return path + "[" + key + "]"
			}
			if path == "" {
				return key
			}
			return path + "." + key
		})
	}
	wasList, wasAList := before.([]any)
	isList, isAList := after.([]any)
	if wasAList && isAList {
		keyed := byName
		if byName(wasList) == nil || byName(isList) == nil {
			keyed = byPosition
		}
		return compareMaps(keyed(wasList), keyed(isList), func(key string) string { return path + "[" + key + "]" })
	}
	return []change{{path: path, before: before, after: after}}
}

func compareMaps(was, is map[string]any, join func(key string) string) []change {
	keys := map[string]any{}
	maps.Copy(keys, was)
	maps.Copy(keys, is)
	var changes []change
	for _, key := range slices.SortedFunc(maps.Keys(keys), byNumber) {
		before, there := was[key]
		after, then := is[key]
		if there && then {
			changes = append(changes, compare(join(key), before, after)...)
			continue
		}
		changes = append(changes, change{path: join(key), before: before, after: after, added: !there, removed: !then})
	}
	return changes
}

func byNumber(a, b string) int {
	first, errA := strconv.Atoi(a)
	second, errB := strconv.Atoi(b)
	if errA == nil && errB == nil {
		return first - second
	}
	return strings.Compare(a, b)
}

// byName answers a list's elements by their names; nil where not all have one
// that is theirs alone.
func byName(list []any) map[string]any {
	named := map[string]any{}
	for _, element := range list {
		if object, ok := element.(map[string]any); ok {
			if name, ok := object["name"].(string); ok && name != "" {
				named[name] = element
			}
		}
	}
	if len(named) != len(list) {
		return nil
	}
	return named
}

func byPosition(list []any) map[string]any {
	numbered := map[string]any{}
	for i, element := range list {
		numbered[strconv.Itoa(i)] = element
	}
	return numbered
}

// sameNumber says whether two values are one number in two Go types.
func sameNumber(a, b any) bool {
	number := func(value any) (float64, bool) {
		switch n := value.(type) {
		case int64:
			return float64(n), true
		case int:
			return float64(n), true
		case float64:
			return n, true
		}
		return 0, false
	}
	first, ok := number(a)
	second, ok2 := number(b)
	return ok && ok2 && first == second
}

// DiffValues tells in a few lines what differs between two sets of values:
// "+" was added, "-" removed, "~" changed. Numbers and booleans are shown. Texts
// are shown with showTexts alone, since nobody can tell whether one is a secret,
// and never under a name that speaks of one.
func DiffValues(before, after map[string]any, showTexts bool) []string {
	var lines []string
	for _, change := range compare("", before, after) {
		lines = append(lines, change.line(func(path string, value any) bool { return mayShow(path, value, showTexts) }))
	}
	return shorten(lines)
}

// mayShow says whether a value may be shown to people. What is not a leaf may
// hold anything, under names of its own.
func mayShow(path string, value any, showTexts bool) bool {
	switch value.(type) {
	case nil, bool, int, int64, float64:
		return true
	case string:
		return showTexts && !secretive.MatchString(path)
	}
	return false
}
