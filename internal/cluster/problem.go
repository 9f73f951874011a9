// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"
	"strings"
)

// Severity says what a [Problem] means for the plan.
type Severity int

const (
	// Wrong is certain to fail, or to hang, at apply.
	Wrong Severity = iota
	// Doubtful may be meant so.
	Doubtful
	// NotChecked could not be judged, since a value is known after apply only.
	NotChecked
)

// Input says which text of the user's a [Problem] lies in.
type Input int

// The texts that make a cluster.
const (
	InManifest Input = iota
	InSubstitutions
	InSecrets
)

// Problem is something wrong, or doubtful, in the texts of a cluster.
type Problem struct {
	Severity Severity
	Input    Input
	// Document and Line say where, both from 1; 0 means the text as a whole. Line
	// counts the lines of the text as the user wrote it.
	Document, Line int
	// Object names the object concerned, if it got that far.
	Object string
	// Path is the field, such as spec.replicas.
	Path string
	// Message says what is wrong and what would be right.
	Message string
}

func (p Problem) Error() string {
	var where []string
	if p.Document > 0 {
		where = append(where, fmt.Sprintf("document %d", p.Document))
	}
	if p.Line > 0 {
		where = append(where, fmt.Sprintf("line %d", p.Line))
	}
	for _, text := range []string{p.Object, p.Path} {
		if text != "" {
			where = append(where, showUnknown(text))
		}
	}
	message := showUnknown(p.Message)
	if len(where) == 0 {
		return message
	}
	return strings.Join(where, ", ") + ": " + message
}
