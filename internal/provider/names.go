// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import "regexp"

// dnsLabel matches the names that Kubernetes takes for namespaces and that
// Cluster API takes for clusters, which become host names.
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// hostAndPort matches the authority of a URL without a user.
var hostAndPort = regexp.MustCompile(`^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]+)?$`)
