// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import "errors"

// ParseSecrets reads the Secret documents that go beside a manifest. No message
// quotes any of the text, since all of it may be secret.
func ParseSecrets(text string) (*Manifest, error) {
	parsed, err := Parse(text)
	if err != nil {
		return nil, secretFree(err)
	}
	for _, o := range parsed.Objects {
		if o.GroupVersionKind().GroupKind() != secretKind {
			return nil, Problem{Input: InSecrets, Document: o.Document, Line: o.Line, Message: "only Secrets belong here; put this " + o.GetKind() + " into the manifest"}
		}
	}
	return parsed, nil
}

// secretFree keeps the places of the problems and drops what the YAML parser
// quotes of the text.
func secretFree(err error) error {
	problem := Problem{Input: InSecrets}
	var found Problem
	if errors.As(err, &found) {
		problem.Document, problem.Line = found.Document, found.Line
	}
	problem.Message = "this is not a Kubernetes Secret in YAML"
	return problem
}
