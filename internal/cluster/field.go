// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"
	"strings"
)

// field is one value of an object and where it stands. Its value is nil where
// nothing is set.
type field struct {
	object Object
	path   string
	value  any
}

// at follows a path of keys, such as spec.template.spec, from the object's root.
func (o Object) at(path string) field { return field{object: o, value: o.Object}.at(path) }

// at follows a path of keys from f.
func (f field) at(path string) field {
	for key := range strings.SplitSeq(path, ".") {
		members, _ := f.value.(map[string]any)
		f = field{object: f.object, path: joinPath(f.path, key), value: members[key]}
	}
	return f
}

func (f field) set() bool { return f.value != nil }

// items answers the items of a list; none where it is not one.
func (f field) items() []field {
	list, _ := f.value.([]any)
	items := make([]field, len(list))
	for i, item := range list {
		items[i] = field{object: f.object, path: fmt.Sprintf("%s[%d]", f.path, i), value: item}
	}
	return items
}

// line is the line of the user's text where f stands, or where it would.
func (f field) line() int {
	for path := f.path; path != ""; path = parentPath(path) {
		if at, ok := f.object.places[path]; ok {
			return f.object.origins.of(at.line)
		}
	}
	return f.object.Line
}

func (f field) problem(severity Severity, format string, args ...any) Problem {
	return Problem{
		Severity: severity, Document: f.object.Document, Line: f.line(), Object: f.object.Ref(), Path: f.path,
		Message: fmt.Sprintf(format, args...),
	}
}
