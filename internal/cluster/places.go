// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

// place is where a value stands.
type place struct {
	// line is the line of the value; content that of the first line of its text,
	// which for a block scalar is the next one. Both count the filled text from 1.
	line, content int
}

// placesOf answers the places of all fields of a YAML text by their paths
// (spec.list[0].name), below prefix. before is the number of lines before the
// text. What cannot be parsed has no places.
func placesOf(text, prefix string, before int) map[string]place {
	places := map[string]place{}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil || len(document.Content) == 0 {
		return places
	}
	addPlaces(document.Content[0], prefix, before, places)
	return places
}

func addPlaces(node *yaml.Node, path string, before int, places map[string]place) {
	at := place{line: before + node.Line, content: before + node.Line}
	if node.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		at.content++
	}
	places[path] = at
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			child := joinPath(path, key.Value)
			addPlaces(value, child, before, places)
			// A mapping or a list starts below its key, and people look for the key.
			if value.Kind == yaml.MappingNode || value.Kind == yaml.SequenceNode {
				at := places[child]
				at.line = before + key.Line
				places[child] = at
			}
		}
	case yaml.SequenceNode:
		for i, item := range node.Content {
			addPlaces(item, fmt.Sprintf("%s[%d]", path, i), before, places)
		}
	}
}

func joinPath(path, key string) string {
	if path == "" || strings.HasSuffix(path, ": ") {
		return path + key
	}
	return path + "." + key
}

// parentPath cuts the last step off a path; empty at its end.
func parentPath(path string) string {
	if i := strings.LastIndexAny(path, ".[:"); i > 0 {
		return path[:i]
	}
	return ""
}
