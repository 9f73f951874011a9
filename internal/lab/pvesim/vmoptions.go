// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// vmOptions is the table of a machine's configuration (qemu-server, the part
// that clients of today use).
var vmOptions = schema{
	boolean("acpi"), str("affinity"), propertyParam("agent", "enabled", agentKeys), str("arch").oneOf("x86_64", "aarch64"), str("args"),
	boolean("autostart"), integer("balloon"), str("bios").oneOf("seabios", "ovmf"),
	str("boot").formatted(checkBoot), str("bootdisk"), str("cdrom"), str("cicustom"), str("cipassword"), str("citype").oneOf("configdrive2", "nocloud", "opennebula"),
	boolean("ciupgrade"), str("ciuser"), integer("cores").between(1, 0), propertyParam("cpu", "cputype", cpuKeys), number("cpulimit"), integer("cpuunits").between(1, 262144),
	str("description").between(0, 8*1024), propertyParam("efidisk0", "file", efiKeys), boolean("freeze"), str("hookscript"),
	str("hostpci").upTo(15), str("hotplug"), str("hugepages").oneOf("any", "2", "1024"),
	propertyParam("ide", "file", diskKeys).upTo(3), str("ipconfig").upTo(31), str("ivshmem"), boolean("keephugepages"), str("keyboard"), boolean("kvm"),
	boolean("localtime"), str("lock").oneOf("backup", "clone", "create", "migrate", "rollback", "snapshot", "snapshot-delete", "suspending", "suspended"),
	str("machine").matching(`^(pc|pc(-i440fx)?-\d+(\.\d+)+(\+pve\d+)?(\.pxe)?|q35|pc-q35-\d+(\.\d+)+(\+pve\d+)?(\.pxe)?|virt(?:-\d+(\.\d+)+)?(\+pve\d+)?)(,.*)?$`),
	memoryParam(), str("meta"), number("migrate_downtime"), integer("migrate_speed"), dnsNameParam("name"), str("nameserver"),
	str("net").upTo(31).formatted(checkNet), boolean("numa"), str("numa").upTo(7), boolean("onboot"),
	str("ostype").oneOf("other", "wxp", "w2k", "w2k3", "w2k8", "wvista", "win7", "win8", "win10", "win11", "l24", "l26", "solaris"),
	str("parallel").upTo(2), boolean("protection"), boolean("reboot"), str("rng0"), propertyParam("sata", "file", diskKeys).upTo(5),
	propertyParam("scsi", "file", append(slices.Clone(diskKeys), "queues", "ro", "scsiblock", "product", "vendor")).upTo(30),
	str("scsihw").oneOf("lsi", "lsi53c810", "virtio-scsi-pci", "virtio-scsi-single", "megasas", "pvscsi"), str("searchdomain"),
	str("serial").upTo(3).matching(`^(/dev/.+|socket)$`), integer("shares"), str("smbios1").between(0, 512), integer("smp").between(1, 0), integer("sockets").between(1, 0),
	str("spice_enhancements"), str("sshkeys"), str("startdate"), str("startup"), boolean("tablet"), str("tags").formatted(checkTags), boolean("tdf"),
	boolean("template"), propertyParam("tpmstate0", "file", []string{"file", "size", "version", "import-from"}), str("unused").upTo(255), str("usb").upTo(14), integer("vcpus").between(1, 0), str("vga"),
	propertyParam("virtio", "file", append(slices.Clone(diskKeys), "ro")).upTo(15), str("virtiofs").upTo(9), str("vmgenid"), str("vmstatestorage"), str("watchdog"),
}

var (
	agentKeys = []string{"enabled", "freeze-fs-on-backup", "fstrim_cloned_disks", "type"}
	cpuKeys   = []string{"cputype", "flags", "hidden", "hv-vendor-id", "phys-bits", "reported-model", "guest-phys-bits"}
	efiKeys   = []string{"file", "efitype", "format", "import-from", "ms-cert", "pre-enrolled-keys", "size"}
	diskKeys  = []string{
		"file", "aio", "backup", "bps", "bps_rd", "bps_wr", "cache", "detect_zeroes", "discard", "format", "import-from", "iops", "iops_rd",
		"iops_wr", "iothread", "mbps", "mbps_rd", "mbps_wr", "media", "model", "replicate", "rerror", "serial", "shared", "size", "snapshot", "ssd", "volume", "werror", "wwn",
	}
	netKeys = append([]string{"bridge", "firewall", "host-managed", "link_down", "macaddr", "model", "mtu", "queues", "rate", "tag", "trunks"}, netModels...)
)

func number(name string) param { return param{name: name, kind: kindNumber} }

// memoryParam is a property string since 8.1, "current=N".
func memoryParam() param {
	return str("memory").formatted(func(v string) string {
		n, err := strconv.Atoi(strings.TrimPrefix(v, "current="))
		switch {
		case err != nil:
			return "format error\n%name.current: type check ('integer') failed - got '" + v + "'"
		case n < 16:
			return "format error\n%name.current: value must have a minimum value of 16"
		}
		return ""
	})
}

// propertyParam is a property string of known keys.
func propertyParam(name, def string, keys []string) param {
	return str(name).formatted(func(v string) string { return checkProperties(v, def, keys) })
}

func checkProperties(v, def string, keys []string) string {
	seen := map[string]bool{}
	for part := range strings.SplitSeq(v, ",") {
		k, _, ok := strings.Cut(part, "=")
		if !ok {
			k = def
		}
		if part == "" {
			continue
		}
		if seen[k] {
			return "duplicate key in comma-separated list property: " + k
		}
		seen[k] = true
		if !slices.Contains(keys, k) {
			return "format error\n%name." + k + ": property is not defined in schema and the schema does not allow additional properties"
		}
	}
	if !seen[def] && def == "file" && !seen["volume"] {
		return "format error\n%name.file: property is missing and it is not optional"
	}
	return ""
}

func checkNet(v string) string {
	if text := checkProperties(v, "model", netKeys); text != "" {
		return text
	}
	p := parseProperties(v, "model")
	for _, m := range append([]string{"model"}, netModels...) {
		if _, ok := p[m]; ok {
			return ""
		}
	}
	return "format error\n%name.model: property is missing and it is not optional"
}

var reBoot = regexp.MustCompile(`^(legacy=)?[acdn]{1,4}$|^order=[a-z]+\d+(;[a-z]+\d+)*;?$|^order=$`)

func checkBoot(v string) string {
	// CAPMOX puts ";device" behind an order that may be empty.
	if reBoot.MatchString(strings.Replace(v, "order=;", "order=", 1)) {
		return ""
	}
	return "format error\n%name.legacy: value does not match the regex pattern"
}

func checkTags(v string) string {
	for _, t := range splitList(strings.ToLower(v)) {
		if !reTag.MatchString(t) {
			return "invalid characters in tag"
		}
	}
	return ""
}

// rootOnly are the options that only root@pam itself may set.
var rootOnly = []string{"args", "arch", "affinity", "hookscript", "lock", "hugepages", "keephugepages", "ivshmem", "migrate_downtime", "migrate_speed"}

// optionPrivilege answers what setting an option to a value needs on the machine,
// "" for nothing. create tells a new machine's disks from a later change.
func optionPrivilege(name, value string, create bool) string {
	family := strings.TrimRight(name, "0123456789")
	switch {
	case isDrive(name) && isCDROM(driveProperties(value)):
		return "VM.Config.CDROM"
	case isDrive(name) && create:
		return ""
	case isDrive(name), family == "unused", name == "boot", name == "bootdisk":
		return "VM.Config.Disk"
	case slices.Contains([]string{"cores", "sockets", "cpu", "cpulimit", "cpuunits", "vcpus", "smp", "numa", "kvm"}, name), family == "numa":
		return "VM.Config.CPU"
	case slices.Contains([]string{"memory", "balloon", "shares"}, name):
		return "VM.Config.Memory"
	case slices.Contains([]string{"acpi", "bios", "agent", "autostart", "description", "freeze", "hotplug", "localtime", "name", "onboot",
		"ostype", "protection", "reboot", "startdate", "startup", "tablet", "tags", "tdf", "template", "watchdog"}, name):
		if name == "template" {
			return "VM.Allocate"
		}
		return "VM.Config.Options"
	case slices.Contains([]string{"keyboard", "machine", "scsihw", "smbios1", "vga", "rng0", "spice_enhancements", "vmgenid"}, name),
		family == "serial", family == "usb", family == "hostpci", family == "parallel":
		return "VM.Config.HWType"
	case family == "net":
		return "VM.Config.Network"
	case slices.Contains([]string{"cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "nameserver", "searchdomain", "sshkeys"}, name), family == "ipconfig":
		return "VM.Config.Cloudinit"
	case name == "vmstatestorage", name == "cdrom":
		return "VM.Config.CDROM"
	}
	return ""
}

// mayModify checks the privileges for a set of options.
func (s *Simulator) mayModify(who principal, vmid int, poolName string, create bool, options map[string]string) error {
	for _, o := range slices.Sorted(maps.Keys(options)) {
		if slices.Contains(rootOnly, o) && !who.root() {
			return die("only root can set '%s' config", o)
		}
		priv := optionPrivilege(o, options[o], create)
		if priv == "" || poolName != "" && s.may(who, "/pool/"+poolName, priv) {
			continue
		}
		err := s.demand(who, vmPath(vmid), priv)
		if err != nil && priv == "VM.Config.Cloudinit" {
			err = s.demandAny(who, vmPath(vmid), "VM.Config.Cloudinit", "VM.Config.Network")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mayUseBridges checks SDN.Use on the bridges of network devices.
func (s *Simulator) mayUseBridges(who principal, config map[string]string) error {
	for name, v := range config {
		if !reNet.MatchString(name) {
			continue
		}
		p := parseProperties(v, "model")
		if p["bridge"] == "" {
			continue
		}
		path := "/sdn/zones/localnetwork/" + p["bridge"]
		if p["tag"] != "" {
			path += "/" + p["tag"]
		}
		if err := s.demand(who, path, "SDN.Use"); err != nil {
			return err
		}
	}
	return nil
}
