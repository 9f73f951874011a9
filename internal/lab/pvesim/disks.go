// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// reNewDisk matches "storage:size in GiB", which allocates a disk.
var reNewDisk = regexp.MustCompile(`^([a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]):(\d+(\.\d+)?)$`)

// reCloudInit matches "storage:cloudinit".
var reCloudInit = regexp.MustCompile(`^([a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]):cloudinit$`)

// checkDrives looks at the drives of a new or changed configuration before
// anything is done: syntax, rights and kinds of storage.
func (s *Simulator) checkDrives(who principal, node string, vmid int, config map[string]string) error {
	for _, name := range drives(config) {
		if err := s.checkDrive(who, node, vmid, name, driveProperties(config[name])); err != nil {
			return err
		}
	}
	return nil
}

func (s *Simulator) checkDrive(who principal, node string, vmid int, name string, p map[string]string) error {
	file := p["file"]
	if file == "none" {
		return nil
	}
	if file == "cdrom" {
		return s.demand(who, "/", "Sys.Console")
	}
	if m := reCloudInit.FindStringSubmatch(file); m != nil {
		return s.mayAllocate(who, m[1])
	}
	fresh := reNewDisk.FindStringSubmatch(file)
	if src := p["import-from"]; src != "" {
		if fresh == nil || fresh[2] != "0" {
			return invalid(name, "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>")
		}
		if err := s.mayAllocate(who, fresh[1]); err != nil {
			return err
		}
		return s.checkImport(who, node, name, src)
	}
	if fresh != nil && !isCDROM(p) {
		return s.mayAllocate(who, fresh[1])
	}
	if strings.HasPrefix(file, "/") {
		if !who.root() {
			return die("Only root can pass arbitrary filesystem paths.")
		}
		return nil
	}
	storage, _, ok := splitVolumeID(file)
	if !ok {
		return invalid(name, "invalid format - format error\n%s.file: invalid format - unable to parse volume ID '%s'\n", name, file)
	}
	if _, err := s.storage(storage); err != nil {
		return err
	}
	if v := s.findVolume(node, file); v != nil && v.VMID != vmid {
		return s.mayUse(who, v)
	}
	return nil
}

// mayAllocate checks that a disk may be made on a storage.
func (s *Simulator) mayAllocate(who principal, id string) error {
	if err := s.demand(who, "/storage/"+id, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	st, err := s.storage(id)
	if err != nil {
		return err
	}
	if !st.holds("images") {
		return invalid("storage", "storage '%s' does not support vm images", id)
	}
	return nil
}

// checkImport checks the source of an import.
func (s *Simulator) checkImport(who principal, node, drive, src string) error {
	if strings.HasPrefix(src, "/") {
		if !who.root() {
			return die("Only root can pass arbitrary filesystem paths.")
		}
		return nil
	}
	storage, name, ok := splitVolumeID(src)
	if !ok {
		return invalid(drive, "unable to parse volume ID '%s'", src)
	}
	st, err := s.usableStorage(storage, node)
	if err != nil {
		return err
	}
	kind, _, found := strings.Cut(name, "/")
	switch {
	case !found || !st.typ().files || kind != "" && strings.Trim(kind, "0123456789") == "":
		kind = "images"
	}
	allowed := "'images'"
	if s.release.atLeast(8, 3) {
		allowed = "'images' or 'import'"
	}
	if kind != "images" && (kind != "import" || !s.release.atLeast(8, 3)) {
		return invalid(drive, "%s has wrong type '%s' - needs to be %s", src, kind, allowed)
	}
	v := s.findVolume(node, src)
	if v == nil {
		// A missing source is found out by the task.
		if kind == "import" {
			return s.demandAny(who, "/storage/"+storage, "Datastore.AllocateSpace", "Datastore.Audit", "Datastore.Allocate")
		}
		return s.demand(who, "/storage/"+storage, "Datastore.Allocate")
	}
	if kind == "images" && v.VMID != 0 {
		return s.demand(who, vmPath(v.VMID), "VM.Clone")
	}
	return s.mayUse(who, v)
}

// makeDrive does what a drive of a new or changed configuration asks for and
// answers the drive as it is then written down. The caller holds the lock.
func (s *Simulator) makeDrive(node string, vmid int, name, value string) (string, *volume, error) {
	p := driveProperties(value)
	file := p["file"]
	if file == "none" || file == "cdrom" {
		return printProperties(p, "file"), nil, nil
	}
	if m := reCloudInit.FindStringSubmatch(file); m != nil {
		return s.makeCloudInit(node, vmid, m[1], p)
	}
	if src := p["import-from"]; src != "" {
		return s.importDisk(node, vmid, reNewDisk.FindStringSubmatch(file)[1], src, p)
	}
	if m := reNewDisk.FindStringSubmatch(file); m != nil && !isCDROM(p) {
		st, err := s.usableStorage(m[1], node)
		if err != nil {
			return "", nil, err
		}
		size, _ := parseSize(m[2] + "G")
		if strings.HasPrefix(name, "efidisk") {
			size = 528 << 10
			if st.Type == "lvmthin" || st.Type == "lvm" {
				size = 4 << 20
			}
		}
		if strings.HasPrefix(name, "tpmstate") {
			size = 4 << 20
		}
		format, err := st.chooseFormat(p["format"])
		if err != nil {
			return "", nil, err
		}
		v := s.newDisk(st, node, vmid, format, size)
		delete(p, "format")
		p["file"], p["size"] = v.id(st), printSize(size)
		return printProperties(p, "file"), v, nil
	}
	v := s.findVolume(node, file)
	if v == nil {
		return "", nil, die("volume '%s' does not exist", file)
	}
	p["size"] = printSize(v.Size)
	return printProperties(p, "file"), nil, nil
}

// chooseFormat answers the format of a new disk.
func (st *Storage) chooseFormat(want string) (string, error) {
	if want == "" {
		return st.typ().formats[0], nil
	}
	if !slices.Contains(st.typ().formats, want) {
		return "", die("unsupported format '%s' at storage '%s'", want, st.ID)
	}
	return want, nil
}

func (s *Simulator) makeCloudInit(node string, vmid int, storage string, p map[string]string) (string, *volume, error) {
	st, err := s.usableStorage(storage, node)
	if err != nil {
		return "", nil, err
	}
	format := "raw"
	if slices.Contains(st.typ().formats, "qcow2") {
		format = "qcow2"
	}
	v := s.addVolume(st, node, &volume{
		Name: st.diskName(vmid, fmt.Sprintf("vm-%d-cloudinit", vmid), format), Content: "images", Format: format, Size: 4 << 20, VMID: vmid, Serial: newSerial(),
	})
	p["file"], p["media"] = v.id(st), "cdrom"
	return printProperties(p, "file"), v, nil
}

// importDisk copies a disk or an image file into a new disk.
func (s *Simulator) importDisk(node string, vmid int, storage, src string, p map[string]string) (string, *volume, error) {
	st, err := s.usableStorage(storage, node)
	if err != nil {
		return "", nil, err
	}
	from, err := s.importSource(node, src)
	if err != nil {
		return "", nil, err
	}
	size, format, identity := from.Size, from.Format, from.Image
	if from.Content != "images" {
		want := from.Format
		if from.Content == "iso" {
			want = "" // named by a path, the format is found out
		}
		got, err := s.blobs.inspect(from.Blob, want)
		if err != nil {
			return "", nil, die("cannot import from '%s' - %v", src, err)
		}
		size, format, identity = got.size, got.format, got.identity
	}
	format = cmp.Or(p["format"], format)
	if !slices.Contains(st.typ().formats, format) {
		format = st.typ().formats[0]
	}
	v := s.newDisk(st, node, vmid, format, size)
	v.Blob, v.Image = from.Blob, identity
	delete(p, "import-from")
	delete(p, "format")
	p["file"], p["size"] = v.id(st), printSize(size)
	return printProperties(p, "file"), v, nil
}

// importSource finds a source by volume id or by absolute path.
func (s *Simulator) importSource(node, src string) (*volume, error) {
	if !strings.HasPrefix(src, "/") {
		v := s.findVolume(node, src)
		if v == nil {
			st := s.state.Storages[src[:strings.Index(src, ":")]]
			_, name, _ := splitVolumeID(src)
			return nil, die("failed to stat '%s'", st.path(&volume{Name: name, Content: "import"}))
		}
		return v, nil
	}
	for _, v := range s.state.Volumes {
		if st := s.state.Storages[v.Storage]; st != nil && (v.Node == "" || v.Node == node) && st.path(v) == src {
			return v, nil
		}
	}
	return nil, die("failed to stat '%s'", src)
}

// driveVolume answers the volume in a drive, or nil.
func (s *Simulator) driveVolume(node, value string) (*Storage, *volume) {
	v := s.findVolume(node, driveProperties(value)["file"])
	if v == nil {
		return nil, nil
	}
	return s.state.Storages[v.Storage], v
}
