// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
)

// bootstrap is what is read of Envoy's bootstrap configuration.
type bootstrap struct {
	StaticResources struct {
		Listeners []struct {
			Name    string
			Address struct {
				SocketAddress struct {
					Address   string
					PortValue int
				}
			}
		}
	}
}

// runEnvoy opens the listeners of the bootstrap configuration and answers every
// request with 200: the chart's health check is one of them.
func runEnvoy(ctx context.Context, args []string) error {
	file := ""
	for _, arg := range args { // the chart gives "-c FILE" as one argument
		if fields := strings.Fields(arg); len(fields) == 2 && fields[0] == "-c" {
			file = fields[1]
		}
	}
	if file == "" {
		return errors.New("there is no -c FILE")
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var config bootstrap
	if err := json.Unmarshal(content, &config); err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	if len(config.StaticResources.Listeners) == 0 {
		return fmt.Errorf("%s has no listeners", file)
	}
	ended := make(chan error)
	for _, listener := range config.StaticResources.Listeners {
		at := listener.Address.SocketAddress
		address := net.JoinHostPort(at.Address, strconv.Itoa(at.PortValue))
		wait, err := serve(ctx, address, "/", func(*http.Request) error { return nil })
		if err != nil {
			return fmt.Errorf("listener %s: %w", listener.Name, err)
		}
		slog.Info("listening", "listener", listener.Name, "address", address)
		go func() { ended <- wait() }()
	}
	return <-ended
}
