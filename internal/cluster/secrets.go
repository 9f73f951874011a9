// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ParseSecrets reads the Secret documents that go beside a manifest. No message
// quotes any of the text, since all of it may be secret.
func ParseSecrets(text string) (*Manifest, error) {
	parsed, err := Parse(text)
	if err != nil {
		return nil, secretFree(err)
	}
	for _, o := range parsed.Objects {
		if o.GroupVersionKind().GroupKind() != (schema.GroupKind{Kind: "Secret"}) {
			return nil, Problem{Document: o.Document, Line: o.Line, Message: "secrets_wo takes Secret objects only; this belongs into the manifest: " + o.GetKind()}
		}
	}
	return parsed, nil
}

// secretFree keeps the places of the problems and drops what the YAML parser
// quotes of the text.
func secretFree(err error) error {
	var problem Problem
	if errors.As(err, &problem) {
		return fmt.Errorf("document %d of secrets_wo, which starts near line %d, is not a Kubernetes Secret in YAML", problem.Document, problem.Line)
	}
	return errors.New("secrets_wo is not YAML")
}
