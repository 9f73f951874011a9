// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// rootProvider is the provider block of root@pam with the password.
func (lab *proxmoxLab) rootProvider() string {
	return fmt.Sprintf(`
provider "capi" {
  proxmox = {
    endpoint = %q
    username = "root@pam"
    password = %q
    ca_pem   = <<-EOT
%s
    EOT
  }
}
`, lab.sim.URL(), pvesim.RootPassword, strings.TrimSpace(string(lab.sim.CA())))
}

// allSettings gives every setting that is changed in place another value than
// its default, and strangeSettings what others have made of them.
var (
	allSettings = []string{
		`name = "golden"`, `description = "ours\n\n- with a list\n"`, `tags = ["talos", "capi"]`, `pool = "templates"`, `cpu_type = "host"`, `cores = 4`, `sockets = 2`, `numa = true`,
		`memory = 4096`, `balloon = 0`, `os_type = "other"`, `machine = "pc-q35-9.0"`, `scsi_controller = "virtio-scsi-single"`, `vga = "serial0"`, `rng = true`,
		`agent = false`, `start_on_boot = true`, `network_devices = [{ bridge = "vmbr0", vlan_id = 12, mtu = 1400, queues = 2, rate = 100, firewall = true }, { bridge = "vmbr0", model = "e1000" }]`,
	}
	strangeSettings = map[string]any{
		"name": "strange", "description": "theirs", "tags": "x;y", "cpu": "kvm64", "cores": 1, "sockets": 1, "numa": 0, "memory": 1024, "balloon": 512, "ostype": "l26",
		"machine": "pc", "scsihw": "lsi", "vga": "std", "agent": "1", "onboot": 0, "protection": 1, "net0": "rtl8139,bridge=vmbr0", "delete": "rng0,serial0,net1",
	}
)

func TestTemplateThroughItsLife(t *testing.T) {
	cliPath(t)
	address := "capi_proxmox_template.talos"
	for release, method := range map[string]string{"8.1": "download_iso", "8.4": "download", "9.2": "download"} {
		t.Run(release, func(t *testing.T) {
			lab := newProxmoxLab(t, func(o *pvesim.Options) {
				if o.Release = release; release == "8.1" {
					o.Storages = []pvesim.Storage{{ID: "local", Type: "dir", Content: []string{"iso"}}, {ID: "local-lvm", Type: "lvmthin", Content: []string{"images"}}}
				}
			})
			provider := lab.provider()
			if release == "8.1" {
				provider = lab.rootProvider()
			}
			lab.raw(http.MethodPost, "/pools", map[string]any{"poolid": "templates"})
			vm := func() pvesim.VMSummary { return lab.sim.Summary().VMs[0] }
			all := provider + lab.template("v1.13.7", allSettings...)
			var first string
			resource.UnitTest(t, resource.TestCase{
				ProtoV6ProviderFactories: testProviders(),
				CheckDestroy:             func(*terraform.State) error { return lab.empty() },
				Steps: []resource.TestStep{
					{ // made, with the image known at plan
						Config: provider + lab.template("v1.13.7", `tags = ["talos", "capi"]`),
						ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
							plancheck.ExpectKnownValue(address, tfjsonpath.New("schematic_id"), knownvalue.StringExact(agentSchematic)),
							plancheck.ExpectKnownValue(address, tfjsonpath.New("image_url"), knownvalue.StringExact(lab.factory.URL()+"/image/"+agentSchematic+"/v1.13.7/nocloud-amd64.qcow2")),
							plancheck.ExpectKnownValue(address, tfjsonpath.New("name"), knownvalue.StringExact("talos-v1.13.7-ce4c9805")),
							plancheck.ExpectUnknownValue(address, tfjsonpath.New("vm_id")),
						}},
						ConfigStateChecks: []statecheck.StateCheck{
							statecheck.ExpectKnownValue(address, tfjsonpath.New("vm_id"), knownvalue.Int64Exact(100)),
							statecheck.ExpectKnownValue(address, tfjsonpath.New("phase"), knownvalue.StringExact("ready")),
							statecheck.ExpectKnownValue(address, tfjsonpath.New("image_transfer").AtMapKey("pve1").AtMapKey("method"), knownvalue.StringExact(method)),
						},
						Check: func(*terraform.State) error {
							if first = vm().UUID; !vm().Template || vm().Name != "talos-v1.13.7-ce4c9805" {
								return fmt.Errorf("the VM is %+v", vm())
							}
							return nil
						},
					},
					{ // every setting changed in place
						Config: all, ConfigPlanChecks: action(plancheck.ResourceActionUpdate),
						Check: func(*terraform.State) error {
							if vm().UUID != first || vm().Name != "golden" {
								return fmt.Errorf("the VM is %+v", vm())
							}
							return nil
						},
					},
					{ // every setting changed by others, and brought back
						PreConfig: func() {
							lab.raw(http.MethodPut, "/nodes/pve1/qemu/100/config", strangeSettings)
							lab.raw(http.MethodPut, "/pools/templates", map[string]any{"vms": "100", "delete": 1})
						},
						Config: all, ConfigPlanChecks: action(plancheck.ResourceActionUpdate),
					},
					{ // imported with an empty plan
						ResourceName: address, ImportState: true, ImportStateId: "pve1/100", ImportStateVerify: true,
						ImportStateVerifyIgnore: []string{"image_transfer", "description"}, // the way it came is nowhere noted; blanks at the ends of notes count for nothing
					},
					{ResourceName: address, ImportState: true, ImportStateKind: resource.ImportBlockWithID, ImportStateId: "pve1/100", Config: all},
					{ // another version is another template
						Config: provider + lab.template("v1.13.6"), ConfigPlanChecks: action(plancheck.ResourceActionReplace),
						Check: func(*terraform.State) error {
							if len(lab.sim.Summary().VMs) != 1 || vm().UUID == first || vm().Name != "talos-v1.13.6-ce4c9805" {
								return fmt.Errorf("the VMs are %+v", lab.sim.Summary().VMs)
							}
							return nil
						},
					},
					{ // deleted by others, its id another VM's by now, and made again
						PreConfig: func() {
							id := vm().ID
							lab.raw(http.MethodDelete, fmt.Sprintf("/nodes/pve1/qemu/%d", id), nil)
							lab.raw(http.MethodPost, "/nodes/pve1/qemu", map[string]any{"vmid": id, "name": "somebody"})
						},
						Config: provider + lab.template("v1.13.6"), ConfigPlanChecks: action(plancheck.ResourceActionCreate),
						Check: func(*terraform.State) error {
							if len(lab.sim.Summary().VMs) != 2 {
								return fmt.Errorf("the VMs are %+v", lab.sim.Summary().VMs)
							}
							lab.raw(http.MethodDelete, "/nodes/pve1/qemu/100", nil)
							return nil
						},
					},
				},
			})
		})
	}
}

// tagsByNode are the tags of the templates, by node.
func (lab *proxmoxLab) tagsByNode() map[string]string {
	out := map[string]string{}
	for _, vm := range lab.sim.Summary().VMs {
		if vm.Template {
			out[vm.Node] = strings.TrimPrefix(out[vm.Node]+" "+vm.Tags, " ")
		}
	}
	return out
}

func TestTemplatesOnSeveralNodes(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t, func(o *pvesim.Options) { o.Nodes = []pvesim.Node{{Name: "pve1"}, {Name: "pve2"}, {Name: "pve3"}} })
	on := func(nodes string, arguments ...string) string {
		return lab.provider() + strings.Replace(lab.template("v1.13.7", append(arguments, `tags = ["talos"]`, `vm_id_range = { start = 9000, end = 9009 }`)...), `node_name = "pve1"`, `node_names = `+nodes, 1)
	}
	expect := func(want map[string]string) resource.TestCheckFunc {
		return func(*terraform.State) error {
			if got := lab.tagsByNode(); fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("the templates' tags are %v, want %v", got, want)
			}
			return nil
		}
	}
	const name = "talos-v1.13.7-ce4c9805-"
	address := "capi_proxmox_template.talos"
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps: []resource.TestStep{
			{
				Config: on(`["pve1", "pve2"]`),
				Check:  expect(map[string]string{"pve1": "talos;" + name + "pve1", "pve2": "talos;" + name + "pve2"}),
				ConfigStateChecks: []statecheck.StateCheck{
					statecheck.ExpectKnownValue(address, tfjsonpath.New("vm_id"), knownvalue.Null()),
					statecheck.ExpectKnownValue(address, tfjsonpath.New("id"), knownvalue.StringExact("pve1/9000,pve2/9001")),
					statecheck.ExpectKnownValue(address, tfjsonpath.New("vm_ids").AtMapKey("pve2"), knownvalue.Int64Exact(9001)),
					statecheck.ExpectKnownValue(address, tfjsonpath.New("node_tags").AtMapKey("pve1"), knownvalue.SetExact([]knownvalue.Check{knownvalue.StringExact("talos"), knownvalue.StringExact(name + "pve1")})),
				},
			},
			{ // a node more and one less, in place
				Config: on(`["pve2", "pve3"]`), ConfigPlanChecks: action(plancheck.ResourceActionUpdate),
				Check: expect(map[string]string{"pve2": "talos;" + name + "pve2", "pve3": "talos;" + name + "pve3"}),
			},
			{ // one is deleted by others, the other's own tag taken away
				PreConfig: func() {
					lab.raw(http.MethodDelete, "/nodes/pve2/qemu/9001", nil)
					lab.raw(http.MethodPut, "/nodes/pve3/qemu/9000/config", map[string]any{"tags": "talos"})
				},
				Config: on(`["pve2", "pve3"]`), ConfigPlanChecks: action(plancheck.ResourceActionUpdate),
				Check: expect(map[string]string{"pve2": "talos;" + name + "pve2", "pve3": "talos;" + name + "pve3"}),
			},
			{ // only one of them differs
				PreConfig: func() {
					lab.raw(http.MethodPut, "/nodes/pve3/qemu/9000/config", map[string]any{"cores": 9})
				},
				Config: on(`["pve2", "pve3"]`), ConfigPlanChecks: action(plancheck.ResourceActionUpdate),
			},
			{
				ResourceName: address, ImportState: true, ImportStateId: "pve2/9001,pve3/9000", ImportStateVerify: true,
				ImportStateVerifyIgnore: []string{"image_transfer", "vm_id_range"},
			},
			{ // one node fails, which is told, and finished by the next apply
				PreConfig: func() {
					lab.sim.Inject(pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu", Task: "the disk is on fire"})
				},
				Config:      on(`["pve1", "pve2", "pve3"]`),
				ExpectError: regexp.MustCompile(`(?s)on\s+node\s+pve1:.*the\s+disk\s+is\s+on\s+fire`),
			},
			{
				Config: on(`["pve1", "pve2", "pve3"]`, `node_tag_prefix = "golden"`), ConfigPlanChecks: action(plancheck.ResourceActionUpdate),
				Check: expect(map[string]string{"pve1": "golden-pve1;talos", "pve2": "golden-pve2;talos", "pve3": "golden-pve3;talos"}),
			},
		},
	})
}

func TestTemplateWarnsWhereOthersCannotCloneIt(t *testing.T) {
	lab := newProxmoxLab(t, func(o *pvesim.Options) {
		o.Nodes = []pvesim.Node{{Name: "pve1"}, {Name: "pve2"}, {Name: "pve3"}}
		o.Storages = append(pvesim.DefaultStorages(), pvesim.Storage{ID: "ceph", Type: "rbd", Content: []string{"images"}})
	})
	for storage, want := range map[string]bool{"local-lvm": true, "ceph": false} {
		w := newWorkspace(t, lab.provider()+strings.Replace(lab.template("v1.13.7"), "local-lvm", storage, 1))
		out := strings.Join(strings.Fields(strings.ReplaceAll(w.must("plan", "-input=false", "-no-color"), "│", "")), " ")
		if strings.Contains(out, "no machine can be cloned from this template on pve2 or pve3") != want {
			t.Errorf("on %s the plan says:\n%s", storage, out)
		}
	}
}

func TestTheLastTemplatesOfAFamilyAreKept(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	family := []string{`family = "talos"`, `keep_last = 1`, `tags = ["talos"]`}
	first := append(slices.Clone(family), "lifecycle {\n    create_before_destroy = true\n  }")
	expect := func(want ...string) resource.TestCheckFunc {
		return func(*terraform.State) error {
			var got []string
			for _, vm := range lab.sim.Summary().VMs {
				got = append(got, fmt.Sprintf("%d %s", vm.ID, vm.Tags))
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("the VMs are %q, want %q", got, want)
			}
			return nil
		}
	}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps: []resource.TestStep{
			{Config: lab.provider() + lab.template("v1.13.5", first...), Check: expect("100 talos")},
			{Config: lab.provider() + lab.template("v1.13.6", first...), Check: expect("100 ", "101 talos")},
			{Config: lab.provider() + lab.template("v1.13.7", family...), Check: expect("100 talos", "101 ")},
			{ // protected: a destroy is refused while it is planned
				Config: lab.provider() + lab.template("v1.13.7", `protection = true`),
			},
			{Config: lab.provider() + lab.template("v1.13.7", `protection = true`), Destroy: true, ExpectError: regexp.MustCompile(`(?s)It\s+is\s+protected\s+against\s+deletion.*protection\s+=\s+false`)},
			{Config: lab.provider() + lab.template("v1.13.7", family...)},
		},
	})
}

func TestTemplatesOfFilesAndAddresses(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	file := filepath.Join(t.TempDir(), "node.raw")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, append([]byte(text), make([]byte, 1<<20)...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	of := func(source ...string) string {
		return lab.provider() + "\nresource \"capi_proxmox_template\" \"talos\" {\n  node_name = \"pve1\"\n  storage = \"local-lvm\"\n  " + strings.Join(source, "\n  ") + "\n}\n"
	}
	fromFile := of(fmt.Sprintf("file = %q", file))
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, err := os.Open(file)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = f.Close() }()
		http.ServeContent(w, r, "", time.Time{}, f)
	}))
	t.Cleanup(served.Close)
	address := "capi_proxmox_template.talos"
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps: []resource.TestStep{
			{Config: fromFile, ConfigStateChecks: []statecheck.StateCheck{
				statecheck.ExpectKnownValue(address, tfjsonpath.New("image_transfer").AtMapKey("pve1").AtMapKey("method"), knownvalue.StringExact("upload")),
			}},
			{PreConfig: func() { write("two") }, Config: fromFile, ConfigPlanChecks: action(plancheck.ResourceActionReplace)},
			{ResourceName: address, ImportState: true, ImportStateIdFunc: func(s *terraform.State) (string, error) {
				return s.RootModule().Resources[address].Primary.ID, nil
			}, ImportStateVerify: true, ImportStateVerifyIgnore: []string{"image_transfer"}},
			{PreConfig: func() { _ = os.Remove(file) }, Config: fromFile, PlanOnly: true},
			{ // the same content, at an address by now
				PreConfig: func() { write("two") },
				Config:    of(fmt.Sprintf("url = %q", served.URL+"/node.raw"), fmt.Sprintf("checksum = \"sha256:${filesha256(%q)}\"", file), `name = "golden"`), ConfigPlanChecks: action(plancheck.ResourceActionUpdate),
			},
			{ // a checksum that is another file's, with the file as it is and packed; nothing is left of it
				Config:      of(fmt.Sprintf("url = %q", served.URL+"/node.raw"), `checksum = "sha256:`+strings.Repeat("ab", 32)+`"`),
				ExpectError: regexp.MustCompile(`checksum\s+mismatch`),
			},
			{
				Config:      of(fmt.Sprintf("url = %q", served.URL+"/node.raw"), `checksum = "sha256:`+strings.Repeat("cd", 32)+`"`, "upload_image = true"),
				ExpectError: regexp.MustCompile(`(?s)checksum\s+does\s+not\s+match.*was\s+changed`),
			},
			{ // a file that is made in the same apply
				Config: strings.Replace(of(`file = terraform_data.image.output`, `image_format = "raw"`), "resource", fmt.Sprintf("resource \"terraform_data\" \"image\" {\n  input = %q\n}\nresource", file), 1),
				Check: func(s *terraform.State) error {
					if id := s.RootModule().Resources[address].Primary.Attributes["image_id"]; !strings.HasPrefix(id, "sha256:") {
						return fmt.Errorf("the identity is %q", id)
					}
					return nil
				},
			},
		},
	})
}

// One fault of each class, as users see it.
func TestTemplateFaultsAsUsersSeeThem(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	configuration := lab.provider() + lab.template("v1.13.7", "disk_size = 10")
	step := func(want string, faults ...pvesim.Fault) resource.TestStep {
		s := resource.TestStep{PreConfig: func() { lab.sim.ClearFaults(); lab.sim.Inject(faults...) }, Config: configuration}
		if want != "" {
			s.ExpectError = regexp.MustCompile(`(?s)Unable to create the template talos-v1.13.7-ce4c9805.*` + strings.ReplaceAll(want, " ", `\s+`))
		}
		return s
	}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		CheckDestroy:             func(*terraform.State) error { return lab.empty() },
		Steps: []resource.TestStep{
			step("no answer from Proxmox VE", pvesim.Fault{Cut: pvesim.CutBefore, Times: -1}),
			step("is not the API of Proxmox VE", pvesim.Fault{Path: "/version", Body: "<html>a proxy's own page</html>", Times: -1}),
			step("checksum mismatch", pvesim.Fault{Method: "POST", Path: "/nodes/pve1/storage/local/download-url", Task: "checksum mismatch: got 'a' != expect 'b', aborting"}),
			step("/var/tmp of the node that answers must have room", pvesim.Fault{Method: "POST", Path: "/nodes/pve1/storage/local/download-url", Task: "download failed: wget: unable to connect"},
				pvesim.Fault{Method: "POST", Path: "/nodes/pve1/storage/local/upload", Task: "import failed: no space left on device"}),
			step("Parameter verification failed", pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu", Status: 400, Message: "Parameter verification failed."}),
			step("expired or disabled", pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu", Status: 401, Message: "Authentication failed!", Times: -1}),
			step("does not accept the login of root@pam!terraform", pvesim.Fault{Path: "/version", Status: 401, Message: "Authentication failed!", Times: -1}),
			step("pveum acl modify /storage/local-lvm", pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu", Status: 403, Message: "Permission check failed (/storage/local-lvm, Datastore.AllocateSpace)"}),
			step("cannot reach the node that was asked for", pvesim.Fault{Path: "/nodes/pve1/storage", Status: 595, Message: "No route to host", Times: -1}),
			step("no quorum", pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu", Status: 500, Message: "cluster not ready - no quorum?", Times: -1}),
			step("can't lock file", pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu/*/template", Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout", Times: -1}),
			step("if VM is running", pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu/*/template", Status: 500, Message: "you can't convert a VM to template if VM is running"}),
			step("no space left", pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu/*/template", Task: "command 'lvrename' failed: no space left"}),
			// And all that passes, in one apply.
			step("", pvesim.Fault{Method: "POST", Path: "/nodes/pve1/storage/local/download-url", Cut: pvesim.CutAfter},
				pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu", Status: 596, Message: "Connection timed out"},
				pvesim.Fault{Method: "PUT", Path: "/nodes/pve1/qemu/*/resize", Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout"},
				pvesim.Fault{Method: "POST", Path: "/nodes/pve1/qemu/*/template", Cut: pvesim.CutAfter},
				pvesim.Fault{Path: "/nodes/pve1/tasks/*/status", Nth: 2, Status: 595, Message: "No route to host"}),
		},
	})
}

func TestTheExamplesOfTemplatesAndImagesAreValid(t *testing.T) {
	w := newWorkspace(t, "provider \"capi\" {}\n")
	files := 0
	for _, pattern := range []string{"resources/capi_proxmox_template/*.tf", "data-sources/capi_talos_image/*.tf", "functions/talos_*/*.tf"} {
		matches, err := filepath.Glob(filepath.Join(repository, "examples", filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range matches {
			text, err := os.ReadFile(match)
			if err != nil {
				t.Fatal(err)
			}
			files++
			if err := os.WriteFile(filepath.Join(w.dir, fmt.Sprintf("example%d.tf", files)), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if files < 8 {
		t.Fatalf("only %d examples were found", files)
	}
	w.must("validate", "-no-color")
}

func TestTalosImageDataSourceAndFunctions(t *testing.T) {
	cliPath(t)
	lab := newProxmoxLab(t)
	data := "data.capi_talos_image.this"
	image := func(arguments ...string) string {
		return "data \"capi_talos_image\" \"this\" {\n  " + strings.Join(arguments, "\n  ") + "\n}\n"
	}
	at := fmt.Sprintf("factory_url = %q", lab.factory.URL())
	agent := `extensions = ["siderolabs/qemu-guest-agent"]`
	check := func(name string, want knownvalue.Check) statecheck.StateCheck {
		return statecheck.ExpectKnownValue(data, tfjsonpath.New(name), want)
	}
	functions := fmt.Sprintf(`
output "id" {
  value = provider::capi::talos_schematic_id(yamlencode({ customization = { systemExtensions = { officialExtensions = ["siderolabs/qemu-guest-agent"] } } }))
}
output "url" {
  value = provider::capi::talos_image_url(%[1]q, "v1.13.7", "metal-arm64.raw.xz")
}
output "own" {
  value = provider::capi::talos_image_url(%[1]q, "v1.13.7", "nocloud-amd64.qcow2", "http://factory.example:8080")
}
`, agentSchematic)
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: testProviders(),
		Steps: []resource.TestStep{
			{
				Config: image(`version = "v1.13.7"`, agent, at) + functions,
				ConfigStateChecks: []statecheck.StateCheck{
					check("schematic_id", knownvalue.StringExact(agentSchematic)), check("served", knownvalue.Bool(true)),
					check("url", knownvalue.StringExact(lab.factory.URL()+"/image/"+agentSchematic+"/v1.13.7/nocloud-amd64.qcow2")),
					check("installer_image", knownvalue.StringExact(strings.TrimPrefix(lab.factory.URL(), "http://")+"/installer/"+agentSchematic+":v1.13.7")),
					check("schematic", knownvalue.StringExact("customization:\n    systemExtensions:\n        officialExtensions:\n            - siderolabs/qemu-guest-agent\n")),
					statecheck.ExpectKnownOutputValue("id", knownvalue.StringExact(agentSchematic)),
					statecheck.ExpectKnownOutputValue("url", knownvalue.StringExact("https://factory.talos.dev/image/"+agentSchematic+"/v1.13.7/metal-arm64.raw.xz")),
					statecheck.ExpectKnownOutputValue("own", knownvalue.StringExact("http://factory.example:8080/image/"+agentSchematic+"/v1.13.7/nocloud-amd64.qcow2")),
				},
			},
			{Config: image(`version = "v1.13.99"`, agent, at), ConfigStateChecks: []statecheck.StateCheck{check("served", knownvalue.Bool(false))}},
			{ // a silent factory leaves open what only it knows
				Config: image(`version = "v1.13.7"`, fmt.Sprintf("schematic_id = %q", agentSchematic), `factory_url = "http://127.0.0.1:1"`),
				ConfigStateChecks: []statecheck.StateCheck{
					check("served", knownvalue.Null()), check("schematic", knownvalue.Null()), check("schematic_id", knownvalue.StringExact(agentSchematic)),
				},
			},
			{Config: `output "x" { value = provider::capi::talos_schematic_id("extensions: []") }`, ExpectError: regexp.MustCompile(`not\s+understood`)},
			{Config: `output "x" { value = provider::capi::talos_image_url("` + agentSchematic + `", "v1.13.7", "nocloud.qcow2") }`, ExpectError: regexp.MustCompile(`is\s+not\s+the\s+name\s+of\s+an\s+image`)},
			{Config: `output "x" { value = provider::capi::talos_image_url("` + agentSchematic + `", "v1.13.7", "nocloud-amd64.qcow2", "a", "b") }`, ExpectError: regexp.MustCompile(`at\s+most\s+one`)},
			{Config: `output "x" { value = "which the destroy can read" }`},
		},
	})
}
