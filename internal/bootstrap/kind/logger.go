// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kind

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/kind/pkg/log"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// logger makes what kind tells its user progress. What it tells its developers is
// left out.
type logger struct {
	ctx    context.Context // kind's interface has none
	report progress.Reporter
}

var _ log.Logger = logger{}

func (l logger) tell(text string) {
	// kind tells of each step twice, at its start (•) and at its end (✓).
	if text = strings.TrimSpace(text); text != "" && !strings.HasPrefix(text, "✓") {
		l.report.Report(l.ctx, "creating", text)
	}
}

// Warn, Warnf, Error and Errorf tell.
func (l logger) Warn(text string)                    { l.tell(text) }
func (l logger) Warnf(format string, values ...any)  { l.tell(fmt.Sprintf(format, values...)) }
func (l logger) Error(text string)                   { l.tell(text) }
func (l logger) Errorf(format string, values ...any) { l.tell(fmt.Sprintf(format, values...)) }
func (l logger) V(level log.Level) log.InfoLogger    { return infoLogger{l, level == 0} }

type infoLogger struct {
	logger
	enabled bool
}

// Info, Infof and Enabled are of level 0 alone.
func (l infoLogger) Info(text string) {
	if l.enabled {
		l.tell(text)
	}
}

func (l infoLogger) Infof(format string, values ...any) { l.Info(fmt.Sprintf(format, values...)) }
func (l infoLogger) Enabled() bool                      { return l.enabled }
