// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube

import "errors"

// ErrAbsent is the proven answer "it is not there", as opposed to any other
// error, which leaves the question open. State is dropped only on this.
var ErrAbsent = errors.New("absent")

// IsAbsent says whether err proves absence.
func IsAbsent(err error) bool { return errors.Is(err, ErrAbsent) }
