// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kind

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
)

// fakeEngine is what a pretended docker knows. The command docker on the PATH of
// a test is the test's own binary.
type fakeEngine struct {
	// Down is what the command says of its daemon, if that does not answer.
	Down       string
	Containers map[string]*fakeContainer
	Started    []string
	// Imported counts the bytes of image archives that were loaded into nodes.
	Imported int64
}

type fakeContainer struct {
	Cluster, Role string
	Running       bool
	Files         map[string]string
	Endpoint      string
	Images        []string
}

const engineVariable = "KIND_TEST_ENGINE"

func TestMain(m *testing.M) {
	local.ReexecMain()
	var err error
	switch text := os.Getenv(createVariable); {
	case filepath.Base(os.Args[0]) == "docker":
		err = dockerCommand(os.Args[1:])
	case text != "":
		var c creation
		if err = json.Unmarshal([]byte(text), &c); err == nil {
			err = c.do()
		}
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// withEngine puts the pretended docker on the PATH, and nothing else.
func withEngine(t *testing.T, e fakeEngine) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "docker")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv(engineVariable, filepath.Join(dir, "engine.json"))
	writeEngine(t, e)
}

func writeEngine(t *testing.T, e fakeEngine) {
	t.Helper()
	if err := e.save(); err != nil {
		t.Fatal(err)
	}
}

func readEngine(t *testing.T) fakeEngine {
	t.Helper()
	e, err := loadEngine()
	if err != nil {
		t.Fatal(err)
	}
	return *e
}

func loadEngine() (*fakeEngine, error) {
	content, err := os.ReadFile(os.Getenv(engineVariable))
	if err != nil {
		return nil, err
	}
	e := &fakeEngine{}
	return e, json.Unmarshal(content, e)
}

func (e *fakeEngine) save() error {
	content, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return os.WriteFile(os.Getenv(engineVariable), content, 0o600)
}

// dockerCommand answers as docker's command does to what kind asks of it.
func dockerCommand(arguments []string) error {
	e, err := loadEngine()
	if err != nil {
		return err
	}
	if e.Down != "" {
		return fmt.Errorf("%s", e.Down)
	}
	switch arguments[0] {
	case "ps":
		e.list(arguments)
		return nil
	case "info":
		fmt.Println(`{"CgroupVersion": "2", "MemoryLimit": true, "PidsLimit": true, "CPUShares": true}`)
		return nil
	case "inspect":
		return e.inspect(arguments, arguments[len(arguments)-1])
	case "start":
		for _, name := range arguments[1:] {
			e.Containers[name].Running = true
			e.Started = append(e.Started, name)
		}
		return e.save()
	case "rm":
		maps.DeleteFunc(e.Containers, func(name string, _ *fakeContainer) bool { return slices.Contains(arguments, name) })
		return e.save()
	case "exec":
		return e.exec(arguments[1:])
	}
	// kind gets no further than to its network.
	return fmt.Errorf("error response from daemon: no network can be made")
}

func (e *fakeEngine) list(arguments []string) {
	_, wanted, one := strings.Cut(strings.Join(arguments, " "), "label=io.x-k8s.kind.cluster=")
	wanted, _, _ = strings.Cut(wanted, " ")
	for _, name := range slices.Sorted(maps.Keys(e.Containers)) {
		switch cluster := e.Containers[name].Cluster; {
		case !one:
			fmt.Println(cluster)
		case cluster == wanted:
			fmt.Println(name)
		}
	}
}

func (e *fakeEngine) inspect(arguments []string, name string) error {
	c := e.Containers[name]
	asked := strings.Join(arguments, " ")
	switch {
	case strings.Contains(asked, "--type=image"): // it need not be pulled
	case c == nil:
		return fmt.Errorf("error: no such object: %s", name)
	case strings.Contains(asked, "kind.role"):
		fmt.Println(c.Role)
	case strings.Contains(asked, "NetworkSettings"):
		host, port, _ := strings.Cut(c.Endpoint, ":")
		fmt.Printf("%s\t%s\n", host, port)
	default:
		fmt.Println()
	}
	return nil
}

func (e *fakeEngine) exec(arguments []string) error {
	for strings.HasPrefix(arguments[0], "-") {
		arguments = arguments[1:]
	}
	c, command := e.Containers[arguments[0]], strings.Join(arguments[1:], " ")
	if c == nil || !c.Running {
		return fmt.Errorf("error response from daemon: container %s is not running", arguments[0])
	}
	switch {
	case command == "true", command == "crictl version":
	case strings.HasPrefix(command, "sh -c"):
		fmt.Print(c.Files["/kind/kubeadm.conf"])
		if c.Files["/etc/kubernetes/admin.conf"] != "" {
			fmt.Println("=== initialized")
		}
	case strings.HasPrefix(command, "cat "):
		fmt.Print(c.Files[arguments[2]])
	case strings.HasPrefix(command, "crictl inspecti "):
		if !slices.Contains(c.Images, arguments[3]) {
			return fmt.Errorf("no such image")
		}
		fmt.Println(`{"status": {"id": "sha256:0"}}`)
	case strings.HasPrefix(command, "containerd config dump"):
		fmt.Println("version = 3\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'overlayfs'")
	case strings.Contains(command, "images import"):
		count, err := io.Copy(io.Discard, os.Stdin)
		e.Imported += count
		return errors.Join(err, e.save())
	default:
		return fmt.Errorf("%s: command not found", command)
	}
	return nil
}
