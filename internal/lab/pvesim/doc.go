// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package pvesim simulates the REST API of a Proxmox VE cluster faithfully
// enough that its clients cannot tell: parameters are checked against a table,
// privileges against access control lists with Proxmox VE's own rules, work is
// done by tasks that take time, and refusals carry Proxmox VE's statuses, reason
// phrases, texts and JSON types. It is written from the observed behaviour of
// Proxmox VE 8.2 to 9.2 and shares no code with it.
//
// Not simulated, and answered with 501, are containers, snapshots, migration,
// backups, high availability, firewalls, consoles and software-defined networks
// beyond SDN.Use on a bridge; so are lost quorum and a node's configuration.
// Disks hold nothing but the identity of the image on them.
//
// What runs inside a started machine is not its business, see [Booter].
package pvesim
