// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// shortestSecret is the length below which a secret is not looked for in texts:
// masking each "no" would make them unreadable and hide nothing.
const shortestSecret = 4

// masker takes a release's secrets out of texts. A template may fail with a
// value, and an API server quotes what it refuses.
type masker struct{ *strings.Replacer }

// masker knows [Spec.Secrets] and the texts among the values under names that
// speak of a secret.
func (s Spec) masker() masker {
	var secrets []string
	add := func(secret string) {
		if len(secret) < shortestSecret {
			return
		}
		quoted := strconv.Quote(secret)
		secrets = append(secrets, secret, quoted[1:len(quoted)-1], base64.StdEncoding.EncodeToString([]byte(secret)))
	}
	for _, secret := range s.Secrets {
		add(secret)
	}
	for _, leaf := range leaves("", s.Values) {
		if text, ok := leaf.after.(string); ok && secretive.MatchString(leaf.path) {
			add(text)
		}
	}
	// One secret may be part of another.
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	var pairs []string
	for _, secret := range slices.Compact(secrets) {
		pairs = append(pairs, secret, masked)
	}
	return masker{strings.NewReplacer(pairs...)}
}

// leaves answers every leaf of a tree, as something that was added.
func leaves(path string, value any) []change {
	switch tree := value.(type) {
	case map[string]any:
		var found []change
		for key, below := range tree {
			found = append(found, leaves(path+"."+key, below)...)
		}
		return found
	case []any:
		var found []change
		for _, below := range tree {
			found = append(found, leaves(path, below)...)
		}
		return found
	}
	return []change{{path: path, after: value, added: true}}
}

// maskedError is an error whose text holds no secret.
type maskedError struct {
	error
	text string
}

func (e maskedError) Error() string { return e.text }

func (e maskedError) Unwrap() error { return e.error }

func (m masker) err(err error) error {
	if err == nil {
		return nil
	}
	text := m.Replace(err.Error())
	if text == err.Error() {
		return err
	}
	return maskedError{err, text}
}

func (m masker) reporter(report progress.Reporter) progress.Reporter {
	return func(ctx context.Context, phase, message string) { report.Report(ctx, phase, m.Replace(message)) }
}
