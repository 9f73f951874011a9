// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/luthermonson/go-proxmox"
)

// connect answers a client of the hypervisor of the lab in dir, as the lab's
// administrator.
func connect(dir string) (*proxmox.Client, func(), error) {
	var v struct {
		Endpoint string `json:"proxmox_endpoint"`
		ID       string `json:"proxmox_token_id"`
		Secret   string `json:"proxmox_token_secret"`
		CA       string `json:"proxmox_ca_pem"`
	}
	data, err := os.ReadFile(filepath.Join(dir, VariablesFile))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the lab's variables: %w", err)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, nil, fmt.Errorf("reading the lab's variables: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(v.CA))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	client := proxmox.NewClient(v.Endpoint+"/api2/json", proxmox.WithAPIToken(v.ID, v.Secret), proxmox.WithHTTPClient(&http.Client{Transport: transport}))
	return client, transport.CloseIdleConnections, nil
}

// Left lists what a destroy should have removed from the hypervisor of the lab
// in dir: VMs, templates, and users other than the lab's own.
func Left(ctx context.Context, dir string) ([]string, error) {
	client, done, err := connect(dir)
	if err != nil {
		return nil, err
	}
	defer done()
	cluster, err := client.Cluster(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking the lab's hypervisor: %w", err)
	}
	machines, err := cluster.Resources(ctx, "vm")
	if err != nil {
		return nil, fmt.Errorf("asking the lab's hypervisor: %w", err)
	}
	var left []string
	for _, m := range machines {
		left = append(left, fmt.Sprintf("VM %d (%s)", m.VMID, m.Name))
	}
	users, err := client.Users(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking the lab's hypervisor: %w", err)
	}
	owner, _, _ := strings.Cut(TokenID, "!")
	for _, u := range users {
		if u.UserID != "root@pam" && u.UserID != owner {
			left = append(left, "user "+u.UserID)
		}
	}
	return left, nil
}

// Describe lists the machines of the lab in dir, as its API tells.
func Describe(ctx context.Context, dir string, w io.Writer) error {
	client, done, err := connect(dir)
	if err != nil {
		return err
	}
	defer done()
	cluster, err := client.Cluster(ctx)
	if err != nil {
		return fmt.Errorf("asking the lab's hypervisor: %w", err)
	}
	machines, err := cluster.Resources(ctx, "vm")
	if err != nil {
		return fmt.Errorf("asking the lab's hypervisor: %w", err)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, m := range machines {
		kind := "machine"
		if m.Template == 1 {
			kind = "template"
		}
		_, _ = fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\n", kind, m.VMID, m.Name, m.Node, m.Status)
	}
	return table.Flush()
}
