// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
)

// failure is an error as every resource tells it: the summary is
// "Unable to <verb> <thing>", the detail holds the cause, what exists now and
// what to run next. None of the texts may hold a secret.
type failure struct {
	// verb and thing make the summary: "create", "the Helm release kube-system/cilium".
	verb, thing string
	// cause is the engine's wrapped error.
	cause error
	// exists says what is there now that the user may not expect. May be empty.
	exists string
	// next says what to run or change. May be empty.
	next string
}

// addTo adds the failure as an error.
func (f failure) addTo(diags *diag.Diagnostics) { diags.AddError(f.summary(), f.detail()) }

// warn adds the failure as a warning, for a refresh that keeps the prior state.
func (f failure) warn(diags *diag.Diagnostics) { diags.AddWarning(f.summary(), f.detail()) }

func (f failure) summary() string { return "Unable to " + f.verb + " " + f.thing }

func (f failure) detail() string {
	var parts []string
	if f.cause != nil {
		parts = append(parts, sentence(f.cause.Error()))
	}
	if f.exists != "" {
		parts = append(parts, "What exists now: "+sentence(f.exists))
	}
	if f.next != "" {
		parts = append(parts, "What to do next: "+sentence(f.next))
	}
	return strings.Join(parts, "\n\n")
}

// sentence ends a text with a full stop and starts it with a capital letter
// where it starts with a lower-case ASCII one.
func sentence(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return text
	}
	if first := text[0]; first >= 'a' && first <= 'z' {
		text = string(first-'a'+'A') + text[1:]
	}
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "!") || strings.HasSuffix(text, "?") {
		return text
	}
	return text + "."
}

// untaintAdvice is the next step after a Create that failed half-way: Terraform
// has marked the resource as tainted, and taking the mark off lets the next
// apply finish the work in place. Without it the next apply replaces the
// resource, which takes up the unfinished objects as well.
func untaintAdvice(resourceType string) string {
	return "run apply again, which takes up the unfinished work. To finish it in place instead of by a replacement, first run: terraform untaint ADDRESS, with " +
		"the address of this resource (" + resourceType + ".NAME)"
}
