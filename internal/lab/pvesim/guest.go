// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"context"
	"net/netip"
)

// Booter turns a started virtual machine into something that runs. The
// simulator itself knows only the hypervisor's side: it asks a Booter when a
// machine with a bootable disk is started. A nil Booter leaves machines running
// and empty.
type Booter interface {
	// Boot is called once for every start of a machine, outside the simulator's
	// locks. It returns as soon as the machine is powered on; what happens inside
	// goes on by itself and must not be tied to ctx, which ends with the start
	// task. An error means that nothing runs inside the machine; as on real
	// hardware the hypervisor then still shows it as running.
	Boot(ctx context.Context, vm VM) (Guest, error)
}

// VM is what a guest can see of its virtual hardware at power-on.
type VM struct {
	// Node is the name of the Proxmox VE node that runs the machine.
	Node string
	// ID is the machine's id, 100 or higher.
	ID int
	// Name is the machine's name in Proxmox VE; it may be empty.
	Name string
	// UUID is the SMBIOS system uuid, lower case.
	UUID string
	// Config is a copy of the configuration in Proxmox VE's own notation
	// ("net0": "virtio=BC:24:11:..,bridge=vmbr0").
	Config map[string]string
	// MemoryMiB and Cores (sockets times cores) size the machine.
	MemoryMiB int
	Cores     int
	// CDROM answers the content of the ISO image in drive ide0, or nil when the
	// drive is missing or empty. It reads the drive as it is at the time of the call.
	CDROM func() ([]byte, error)
	// TemplateImage identifies the image on the boot disk:
	// "<schematic>/<version>/<platform>-<arch>" as written by the Image Factory
	// simulator. Only machines with such a disk are booted.
	TemplateImage string
	// Disk identifies this machine's own boot disk: it stays the same over
	// restarts and is new for every clone, so a guest may keep its data by it.
	Disk string
}

// Guest is the running inside of a virtual machine.
type Guest interface {
	// Shutdown asks the guest to power off by ACPI or agent and returns when it
	// is off. It returns an error when ctx ends first.
	Shutdown(ctx context.Context) error
	// Kill takes the power away. The guest's disk stays. It returns when nothing
	// of the guest runs any more, and may be called more than once.
	Kill()
	// AgentRunning says whether a QEMU guest agent answers.
	AgentRunning() bool
	// Hostname is the name the guest gives itself.
	Hostname() string
	// Addresses are those of the guest's network interfaces, loopback left out.
	Addresses() []netip.Prefix
}

// Destroyer is a Booter that keeps something for a machine's disk. Destroy is
// called once when the machine is deleted, with [VM.Disk].
type Destroyer interface {
	Destroy(disk string) error
}
