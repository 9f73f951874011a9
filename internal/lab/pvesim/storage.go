// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// storageType is what a type of storage can do.
type storageType struct {
	// formats of disks, the default first.
	formats []string
	// files says that the storage is a file system: it holds ISO images and the
	// like, and disks lie in a folder of their machine.
	files bool
	// network storages show the same on every node.
	network bool
	// linked says that disks can be cloned without a copy; visible, that the
	// link shows in the volume's id.
	linked, visible bool
}

var storageTypes = map[string]storageType{
	"dir":     {formats: []string{"raw", "qcow2", "vmdk"}, files: true, linked: true, visible: true},
	"nfs":     {formats: []string{"raw", "qcow2", "vmdk"}, files: true, network: true, linked: true, visible: true},
	"cifs":    {formats: []string{"raw", "qcow2", "vmdk"}, files: true, network: true, linked: true, visible: true},
	"cephfs":  {formats: []string{"raw"}, files: true, network: true},
	"btrfs":   {formats: []string{"raw"}, files: true},
	"lvm":     {formats: []string{"raw"}},
	"lvmthin": {formats: []string{"raw"}, linked: true},
	"zfspool": {formats: []string{"raw"}, linked: true, visible: true},
	"rbd":     {formats: []string{"raw"}, network: true, linked: true, visible: true},
}

func (st *Storage) typ() storageType { return storageTypes[st.Type] }

func (st *Storage) holds(content string) bool { return slices.Contains(st.Content, content) }

func (st *Storage) onNode(node string) bool {
	return len(st.Nodes) == 0 || slices.Contains(st.Nodes, node)
}

// volume is a file or a disk on a storage.
type volume struct {
	Storage string `json:"storage"`
	// Node is empty on shared storages.
	Node string `json:"node,omitempty"`
	// Name follows the storage in the volume's id: "iso/x.iso",
	// "100/vm-100-disk-0.qcow2" or "vm-100-disk-0".
	Name    string `json:"name"`
	Content string `json:"content"`
	Format  string `json:"format"`
	// Size is a disk's virtual size or a file's length, in bytes.
	Size  int64 `json:"size"`
	CTime int64 `json:"ctime"`
	VMID  int   `json:"vmid,omitempty"`
	// Blob names the bytes in the blob store; empty disks have none.
	Blob string `json:"blob,omitempty"`
	// Parent is the name of the base volume of a linked clone.
	Parent string `json:"parent,omitempty"`
	// Image identifies what the factory wrote on a disk, see [VM.TemplateImage].
	Image string `json:"image,omitempty"`
	// Serial is new for every disk that is made.
	Serial string `json:"serial,omitempty"`
}

// id is the volume's id as configurations hold it; a linked clone on a storage
// that shows links begins with its base.
func (v *volume) id(st *Storage) string {
	if v.Parent != "" && st.typ().visible {
		return v.Storage + ":" + v.Parent + "/" + v.Name
	}
	return v.Storage + ":" + v.Name
}

// base says whether a disk belongs to a template.
func (v *volume) base() bool {
	return strings.HasPrefix(v.Name[strings.LastIndex(v.Name, "/")+1:], "base-")
}

// splitVolumeID cuts "storage:name"; ok is false for anything else.
func splitVolumeID(id string) (storage, name string, ok bool) {
	storage, name, ok = strings.Cut(id, ":")
	return storage, name, ok && reStorage.MatchString(storage) && name != ""
}

var (
	reLinkedFile  = regexp.MustCompile(`^\d+/base-[^/]+/(\d+/vm-[^/]+)$`)
	reLinkedBlock = regexp.MustCompile(`^base-[^/]+/(vm-[^/]+)$`)
)

// ownName drops the base from a linked clone's name.
func ownName(name string) string {
	for _, re := range []*regexp.Regexp{reLinkedFile, reLinkedBlock} {
		if m := re.FindStringSubmatch(name); m != nil {
			return m[1]
		}
	}
	return name
}

// storage answers a configured storage.
func (s *Simulator) storage(id string) (*Storage, error) {
	st := s.state.Storages[id]
	if st == nil {
		return nil, die("storage '%s' does not exist", id)
	}
	return st, nil
}

// usableStorage refuses storages that are disabled or not on a node.
func (s *Simulator) usableStorage(id, node string) (*Storage, error) {
	st, err := s.storage(id)
	if err != nil {
		return nil, err
	}
	if st.Disabled {
		return nil, die("storage '%s' is disabled", id)
	}
	if !st.onNode(node) {
		return nil, die("storage '%s' is not available on node '%s'", id, node)
	}
	return st, nil
}

// findVolume answers a volume as a node sees it, or nil.
func (s *Simulator) findVolume(node, id string) *volume {
	storage, name, ok := splitVolumeID(id)
	if !ok {
		return nil
	}
	name = ownName(name)
	for _, v := range s.state.Volumes {
		if v.Storage == storage && v.Name == name && (v.Node == "" || v.Node == node) {
			return v
		}
	}
	return nil
}

// addVolume puts a volume on a storage; an older one of the name is replaced.
func (s *Simulator) addVolume(st *Storage, node string, v *volume) *volume {
	v.Storage = st.ID
	if !st.Shared {
		v.Node = node
	}
	v.CTime = s.opts.Clock.Now().Unix()
	s.state.dropVolume(func(o *volume) bool { return o.Storage == v.Storage && o.Node == v.Node && o.Name == v.Name })
	s.state.Volumes = append(s.state.Volumes, v)
	return v
}

// removeVolume takes a volume away. Its bytes stay until the next start, since a
// transfer of the same bytes may be under way.
func (s *Simulator) removeVolume(v *volume) {
	s.state.dropVolume(func(o *volume) bool { return o == v })
}

func (st *state) dropVolume(which func(*volume) bool) {
	st.Volumes = slices.DeleteFunc(st.Volumes, which)
}

// inUse says whether linked clones need a volume.
func (s *Simulator) inUse(v *volume) bool {
	return slices.ContainsFunc(s.state.Volumes, func(o *volume) bool {
		return o.Storage == v.Storage && o.Node == v.Node && o.Parent == v.Name
	})
}

// newDisk makes an empty disk for a machine under the first free number.
func (s *Simulator) newDisk(st *Storage, node string, vmid int, format string, size int64) *volume {
	return s.addVolume(st, node, &volume{
		Name: s.freeName(st, node, vmid, "disk", format), Content: "images", Format: format, Size: size, VMID: vmid,
		Serial: newSerial(),
	})
}

// freeName answers the first name that is not taken: "vm-100-disk-0".
func (s *Simulator) freeName(st *Storage, node string, vmid int, what, format string) string {
	for n := 0; ; n++ {
		name := st.diskName(vmid, fmt.Sprintf("vm-%d-%s-%d", vmid, what, n), format)
		baseName := st.diskName(vmid, fmt.Sprintf("base-%d-%s-%d", vmid, what, n), format)
		if s.findVolume(node, st.ID+":"+name) == nil && s.findVolume(node, st.ID+":"+baseName) == nil {
			return name
		}
	}
}

// diskName is the name of a disk on this type of storage.
func (st *Storage) diskName(vmid int, name, format string) string {
	if st.typ().files {
		return fmt.Sprintf("%d/%s.%s", vmid, name, format)
	}
	return name
}

// path is where a volume would lie on a real node.
func (st *Storage) path(v *volume) string {
	root := "/mnt/pve/" + st.ID
	if st.ID == "local" {
		root = "/var/lib/vz"
	}
	kind, file, _ := strings.Cut(v.Name, "/")
	switch {
	case v.Content == "images" && st.typ().files:
		return root + "/images/" + v.Name
	case kind == "iso":
		return root + "/template/iso/" + file
	case kind == "vztmpl":
		return root + "/template/cache/" + file
	case st.typ().files:
		return root + "/" + v.Name
	case st.Type == "zfspool":
		return "/dev/zvol/" + st.ID + "/" + v.Name
	default:
		return "/dev/" + st.ID + "/" + v.Name
	}
}

// used answers how many bytes of a storage are taken on a node.
func (s *Simulator) used(st *Storage, node string) int64 {
	var sum int64
	for _, v := range s.state.Volumes {
		if v.Storage == st.ID && (v.Node == "" || v.Node == node) {
			sum += v.Size
		}
	}
	return min(sum, st.Total)
}

// extensions are the endings of file names by content.
func (r release) extensions(content string) []string {
	switch content {
	case "iso":
		return []string{".iso", ".img"}
	case "vztmpl":
		return []string{".tar.gz", ".tar.xz", ".tar.zst"}
	case "import":
		if r.atLeast(8, 4) {
			return []string{".qcow2", ".raw", ".vmdk", ".ova"}
		}
		return []string{".ova"}
	}
	return nil
}

var unsafeInName = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// normalFileName cuts folders off and replaces what is not allowed.
func normalFileName(name string) string {
	name = name[strings.LastIndexAny(name, `/\`)+1:]
	return unsafeInName.ReplaceAllString(name, "_")
}

// fileFormat is the format of a file by its name.
func fileFormat(name string) string {
	ext := name[strings.LastIndex(name, ".")+1:]
	switch {
	case strings.Contains(name, ".tar."):
		return "t" + ext
	case ext == "img":
		return "iso"
	}
	return ext
}

// uploadTarget checks a storage and a file name for an upload or a download and
// answers the volume's name.
func (c *call) uploadTarget(content, filename string) (*Storage, string, error) {
	st, err := c.usableStorage(c.str("storage"), c.str("node"))
	if err != nil {
		return nil, "", err
	}
	if !st.typ().files {
		return nil, "", die("can't upload to storage type '%s', not a file based storage!", st.Type)
	}
	if !st.holds(content) {
		return nil, "", die("storage '%s' is not configured for content-type '%s'", st.ID, content)
	}
	filename = normalFileName(filename)
	for _, ext := range c.release.extensions(content) {
		if strings.HasSuffix(strings.ToLower(filename), ext) && len(filename) > len(ext) {
			return st, content + "/" + filename, nil
		}
	}
	return nil, "", invalid("filename", "wrong file extension")
}
