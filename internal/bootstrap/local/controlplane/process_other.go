// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package controlplane

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"
)

// errLinux is the answer elsewhere: control planes' programs are Linux programs,
// and only Linux ends them with the process that started them.
var errLinux = errors.New("a control plane of processes runs on Linux only")

type process struct {
	name, log string
	done      chan struct{}
}

func startProcess(string, string, string, string, []string) (*process, error) { return nil, errLinux }

func (p *process) stop(context.Context, time.Duration) error { return nil }

func (p *process) ended() error { return errLinux }

const logLines = 0

func tail(path string, _ int) string {
	_, err := os.Stat(path)
	return errors.Join(errLinux, err).Error()
}

type reservation struct{ port int }

func reserve(netip.Addr) (*reservation, error) { return nil, errLinux }

func (r *reservation) release() {}

func checkFree(context.Context, netip.Addr, int) error { return errLinux }
