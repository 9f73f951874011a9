// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// TemplateSettings are what can be changed on a finished template.
type TemplateSettings struct {
	Name        string
	Description string
	// Tags are a set; Proxmox VE keeps them in lower case and sorted.
	Tags []string
	// Pool of resources that the template is a member of; empty means none.
	Pool string

	// CPUType is "x86-64-v2-AES", "host" and so on.
	CPUType        string
	Cores, Sockets int
	NUMA           bool
	MemoryMiB      int
	// Balloon is the least memory in MiB that ballooning leaves, in digits; "0"
	// turns ballooning off, and empty leaves it to Proxmox VE.
	Balloon string

	// OSType tells Proxmox VE what runs inside, "l26" for Linux.
	OSType string
	// Machine is the machine type, "q35"; empty leaves it to Proxmox VE.
	Machine string
	// SCSIController is "virtio-scsi-pci", "virtio-scsi-single" and so on.
	SCSIController string
	// VGA is the display, "std" or "serial0"; empty leaves it to Proxmox VE.
	VGA string
	// Serial gives the VM a serial port whose other end is a socket, on which
	// Talos shows its log.
	Serial bool
	// RNG gives the VM a source of random numbers.
	RNG bool
	// Agent says that the guest has a QEMU guest agent.
	Agent bool
	// StartOnBoot starts clones with the node; a template itself never runs.
	StartOnBoot bool
	// Protection has Proxmox VE refuse to delete the template.
	Protection bool
	// Networks are the network devices, net0 first.
	Networks []NetworkDevice
}

// NetworkDevice is one network device.
type NetworkDevice struct {
	// Model is "virtio" and so on; empty means virtio.
	Model  string
	Bridge string
	// VLAN tag, MTU, Queues and Rate (MB/s); zero means none.
	VLAN, MTU, Queues, Rate int
	Firewall                bool
}

// DiskOptions are those of the boot disk.
type DiskOptions struct {
	Discard, SSD, IOThread bool
	// Cache is "none", "writeback" and so on; empty leaves it to Proxmox VE.
	Cache string
}

// NetworkModels and the others are the values that Proxmox VE takes
// (qemu-server, src/PVE/QemuServer.pm).
var (
	NetworkModels   = []string{"virtio", "e1000", "e1000e", "rtl8139", "vmxnet3"}
	SCSIControllers = []string{"virtio-scsi-pci", "virtio-scsi-single", "lsi", "lsi53c810", "megasas", "pvscsi"}
	DiskCaches      = []string{"none", "writethrough", "writeback", "unsafe", "directsync"}
	OSTypes         = []string{"l26", "l24", "other", "solaris", "win10", "win11", "win7", "win8", "wvista", "w2k", "w2k3", "w2k8", "wxp"}
)

// maxNetworks is how many network devices a VM can have.
const maxNetworks = 32

var (
	dnsName     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
	tagName     = regexp.MustCompile(`^[a-z0-9_][a-z0-9_+.-]*$`)
	storageName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]$`)
	nodeName    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
	bridgeName  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{1,14}$`)
	poolName    = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}$`)
	machineName = regexp.MustCompile(`^(pc|q35|pc-i440fx-\d+(\.\d+)+(\+pve\d+)?|pc-q35-\d+(\.\d+)+(\+pve\d+)?|virt(-\d+(\.\d+)+(\+pve\d+)?)?)$`)
	cpuName     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)
	vgaName     = regexp.MustCompile(`^(cirrus|none|qxl[234]?|serial[0-3]|std|virtio|virtio-gl|vmware)$`)
)

// checker answers a check of a text against a pattern.
func checker(pattern *regexp.Regexp, want string) func(string) error {
	return func(text string) error {
		if !pattern.MatchString(text) {
			return fmt.Errorf("%q is not %s", text, want)
		}
		return nil
	}
}

// Checks of what Proxmox VE takes as a name. CheckTag refuses upper case, which
// Proxmox VE accepts and makes lower case: the tag would not read back as it was
// written.
var (
	CheckName    = checker(dnsName, "a DNS name, which a VM's name must be")
	CheckTag     = checker(tagName, "a tag: lower-case letters, digits and _ - + . are allowed")
	CheckStorage = checker(storageName, "the name of a storage: letters, digits and - _ . are allowed, two characters at least, the first a letter")
	CheckNode    = checker(nodeName, "the name of a node: letters, digits and - are allowed; it is no address and has no domain")
	CheckBridge  = checker(bridgeName, "the name of a bridge, such as \"vmbr0\"")
	CheckPool    = checker(poolName, "the name of a pool: letters, digits and - _ . are allowed, and at most two slashes for nested pools")
	CheckMachine = checker(machineName, "a machine type, such as \"q35\" or \"pc-q35-9.2\"")
	CheckCPU     = checker(cpuName, "a type of CPU, such as \"host\" or \"x86-64-v2-AES\"")
	CheckVGA     = checker(vgaName, "a display, such as \"std\" or \"serial0\"")
)

// normalTags answers tags as Proxmox VE keeps them.
func normalTags(tags []string) []string {
	out := make([]string, 0, len(tags))
	for _, tag := range tags {
		if tag = strings.ToLower(strings.TrimSpace(tag)); tag != "" {
			out = append(out, tag)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func splitTags(text string) []string {
	return normalTags(strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == ',' || r == ' ' }))
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// chosen is value where on, else an empty string: an option that is not set.
func chosen(on bool, value string) string {
	if on {
		return value
	}
	return ""
}

// config answers the options for the settings; an empty value is an option that
// is not set. macs, by device, keep the addresses that there are already. The
// pool is no option.
func (t TemplateSettings) config(m mark, macs map[string]string) map[string]string {
	notes := strings.TrimSpace(t.Description) // as it is read back
	if m.Kind != "" {
		notes = m.with(notes, "\n\n")
	}
	out := map[string]string{
		"name":        t.Name,
		"description": notes,
		"tags":        strings.Join(normalTags(t.Tags), ";"),
		"cpu":         t.CPUType,
		"cores":       strconv.Itoa(t.Cores),
		"sockets":     strconv.Itoa(max(1, t.Sockets)),
		"numa":        flag(t.NUMA),
		"memory":      strconv.Itoa(t.MemoryMiB),
		"balloon":     t.Balloon,
		"ostype":      t.OSType,
		"machine":     t.Machine,
		"scsihw":      t.SCSIController,
		"vga":         t.VGA,
		"serial0":     chosen(t.Serial, "socket"),
		"rng0":        chosen(t.RNG, "source=/dev/urandom"),
		"agent":       "0",
		"onboot":      flag(t.StartOnBoot),
		"protection":  flag(t.Protection),
	}
	if t.Agent {
		out["agent"] = "enabled=1"
	}
	for i, device := range t.Networks {
		name := "net" + strconv.Itoa(i)
		out[name] = device.option(macs[name])
	}
	return out
}

// Same says whether two settings mean the same to Proxmox VE.
func (t TemplateSettings) Same(o TemplateSettings) bool {
	return t.Pool == o.Pool && maps.Equal(t.config(mark{}, nil), o.config(mark{}, nil))
}

// option is the device in Proxmox VE's notation. mac, when not empty, keeps its
// address.
func (n NetworkDevice) option(mac string) string {
	out := n.Model
	if out == "" {
		out = NetworkModels[0]
	}
	if mac != "" {
		out += "=" + mac
	}
	out += ",bridge=" + n.Bridge
	for _, part := range []struct {
		name  string
		value int
	}{{"tag", n.VLAN}, {"mtu", n.MTU}, {"queues", n.Queues}, {"rate", n.Rate}} {
		if part.value != 0 {
			out += "," + part.name + "=" + strconv.Itoa(part.value)
		}
	}
	if n.Firewall {
		out += ",firewall=1"
	}
	return out
}

// networkDevice reads a device from Proxmox VE's notation.
func networkDevice(text string) (n NetworkDevice, mac string) {
	p := property(text)
	for _, model := range NetworkModels {
		if address, ok := p[model]; ok {
			n.Model, mac = model, address
		}
	}
	number := func(name string) int {
		value, _ := strconv.Atoi(p[name])
		return value
	}
	n.Bridge, n.Firewall = p["bridge"], p["firewall"] == "1"
	n.VLAN, n.MTU, n.Queues, n.Rate = number("tag"), number("mtu"), number("queues"), number("rate")
	return n, mac
}

// option is the disk's options behind its volume.
func (d DiskOptions) option() string {
	out := ""
	if d.Discard {
		out += ",discard=on"
	}
	if d.SSD {
		out += ",ssd=1"
	}
	if d.IOThread {
		out += ",iothread=1"
	}
	if d.Cache != "" {
		out += ",cache=" + d.Cache
	}
	return out
}

func diskOptions(p map[string]string) DiskOptions {
	return DiskOptions{Discard: p["discard"] == "on", SSD: p["ssd"] == "1", IOThread: p["iothread"] == "1", Cache: p["cache"]}
}

// settingsOf reads what can be changed out of a configuration. What is not set
// has the value that Proxmox VE takes for it.
func settingsOf(config vmConfig, description string) (t TemplateSettings, macs map[string]string) {
	unset := func(name, value string) string {
		if text := config.text(name); text != "" {
			return text
		}
		return value
	}
	t = TemplateSettings{
		Name:           config.text("name"),
		Description:    description,
		Tags:           splitTags(config.text("tags")),
		CPUType:        cpuType(config.text("cpu")),
		Cores:          config.number("cores", 1),
		Sockets:        config.number("sockets", 1),
		NUMA:           config.text("numa") == "1",
		MemoryMiB:      memoryMiB(config.text("memory")),
		Balloon:        config.text("balloon"),
		OSType:         unset("ostype", "other"),
		Machine:        property(config.text("machine"))[""],
		SCSIController: unset("scsihw", "lsi"),
		VGA:            property(config.text("vga"))[""],
		Serial:         config.text("serial0") == "socket",
		RNG:            config.text("rng0") != "",
		Agent:          agentOn(config.text("agent")),
		StartOnBoot:    config.text("onboot") == "1",
		Protection:     config.text("protection") == "1",
	}
	macs = map[string]string{}
	for i := range maxNetworks {
		name := "net" + strconv.Itoa(i)
		text := config.text(name)
		if text == "" {
			break
		}
		device, mac := networkDevice(text)
		t.Networks = append(t.Networks, device)
		if mac != "" {
			macs[name] = mac
		}
	}
	return t, macs
}

// cpuType reads "host,flags=..." and "cputype=host".
func cpuType(text string) string {
	p := property(text)
	if p["cputype"] != "" {
		return p["cputype"]
	}
	if p[""] == "" {
		return "kvm64" // what the API takes where nothing is set
	}
	return p[""]
}

// memoryMiB reads "2048" and "current=2048".
func memoryMiB(text string) int {
	p := property(text)
	value := p[""]
	if p["current"] != "" {
		value = p["current"]
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		return 512 // what the API takes where nothing is set
	}
	return n
}

// agentOn reads "1", "enabled=1" and "1,fstrim_cloned_disks=1".
func agentOn(text string) bool {
	p := property(text)
	return p[""] == "1" || p["enabled"] == "1"
}
