// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package progress carries the engines' word of what they are doing to whoever
// shows it: the provider writes it to its log and into the computed attribute
// phase, the lab's command prints it.
package progress

import "context"

// Reporter takes one step of a longer piece of work. phase is a short stable
// word that a program may keep ("cloning", "waiting-for-control-plane");
// message is for people and never holds a secret.
type Reporter func(ctx context.Context, phase, message string)

// Report calls r, unless there is none.
func (r Reporter) Report(ctx context.Context, phase, message string) {
	if r != nil {
		r(ctx, phase, message)
	}
}
