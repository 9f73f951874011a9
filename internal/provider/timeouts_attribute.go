// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
)

// defaultTimeouts are the times after which an operation of a resource gives
// up, where the configuration says nothing else. Zero means that the operation
// cannot be configured.
type defaultTimeouts struct {
	Create, Read, Update, Delete time.Duration
}

// timeoutsAttribute is the attribute timeouts that every resource has.
func timeoutsAttribute(ctx context.Context, defaults defaultTimeouts) schema.SingleNestedAttribute {
	say := func(d time.Duration) string {
		return fmt.Sprintf("A duration such as `90s` or `1h30m`. Defaults to `%s`.", shortDuration(d))
	}
	attribute, ok := timeouts.Attributes(ctx, timeouts.Opts{
		Create: defaults.Create > 0, CreateDescription: say(defaults.Create),
		Read: defaults.Read > 0, ReadDescription: say(defaults.Read),
		Update: defaults.Update > 0, UpdateDescription: say(defaults.Update),
		Delete: defaults.Delete > 0, DeleteDescription: say(defaults.Delete),
	}).(schema.SingleNestedAttribute)
	if !ok {
		return schema.SingleNestedAttribute{}
	}
	attribute.MarkdownDescription = "How long an operation may take before it gives up. What it has made by then stays, and the next apply continues."
	return attribute
}

// shortDuration writes 20m0s as 20m.
func shortDuration(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}
