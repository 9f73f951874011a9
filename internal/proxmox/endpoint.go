// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

const (
	// defaultPort is where pveproxy listens.
	defaultPort = "8006"
	// apiRoot is the path of the API.
	apiRoot = "/api2/json"
)

// CheckEndpoint refuses what is no address of the API, in whatever form.
func CheckEndpoint(endpoint string) error {
	_, err := normalEndpoint(endpoint)
	return err
}

// normalEndpoint brings an endpoint into the form "https://host:port". The forms
// that people paste all work: a bare name or address, with a port, the address
// bar of the web interface, the path of the API.
func normalEndpoint(endpoint string) (string, error) {
	text := strings.TrimSpace(endpoint)
	if text == "" {
		return "", errors.New("the Proxmox VE endpoint is empty")
	}
	if address, err := netip.ParseAddr(text); err == nil && address.Is6() {
		text = "[" + text + "]" // an IPv6 address without a port
	}
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil { // the error would repeat a password in the address
		return "", errors.New("the Proxmox VE endpoint is no address such as https://pve.example:8006")
	}
	switch {
	case u.User != nil:
		return "", fmt.Errorf("the Proxmox VE endpoint %q holds a login; give that in the attributes for it", u.Redacted())
	case u.Scheme == "http":
		return "", fmt.Errorf("the Proxmox VE endpoint %q is not encrypted, and Proxmox VE answers over https alone: write https://%s", u.Redacted(), u.Host)
	case u.Scheme != "https" || u.Hostname() == "":
		return "", fmt.Errorf("the Proxmox VE endpoint %q is not of the form https://pve.example:8006", u.Redacted())
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("the Proxmox VE endpoint %q has a port that does not exist", u.Redacted())
	}
	switch strings.TrimRight(u.Path, "/") {
	case "", "/api2", apiRoot, "/api2/extjs":
	default:
		return "", fmt.Errorf("the Proxmox VE endpoint %q has the path %s; Proxmox VE has its API at the root of a host: https://%s",
			u.Redacted(), u.Path, net.JoinHostPort(u.Hostname(), port))
	}
	return "https://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port), nil
}
