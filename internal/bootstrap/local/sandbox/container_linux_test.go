// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func writeFile(t *testing.T, file, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestMountsAppearAtTheirTargets(t *testing.T) {
	dir := t.TempDir()
	file := writeFile(t, filepath.Join(dir, "file"), "a file")
	writeFile(t, filepath.Join(dir, "volume: a,b", "token"), "a token")
	writeFile(t, filepath.Join(dir, "inner", "x"), "the inner one")
	pod := startPod(t, PodConfig{Dir: filepath.Join(dir, "pod:with,signs")})
	volume := filepath.Join(dir, "volume: a,b")
	account := "/var/run/secrets/kubernetes.io/serviceaccount"
	for _, test := range []struct {
		name   string
		mounts []Mount
		args   []string
		want   string
		fails  bool
	}{
		{"a file", []Mount{{Source: file, Target: "/etc/app/config"}}, []string{"cat", "/etc/app/config"}, "a file", false},
		{"a directory below a link that is absolute", []Mount{{Source: volume, Target: account, ReadOnly: true}}, []string{"cat", account + "/token"}, "a token", false},
		{"the same by the link's target", []Mount{{Source: volume, Target: account}}, []string{"cat", "/run/secrets/kubernetes.io/serviceaccount/token"}, "a token", false},
		{"nothing outside", []Mount{{Source: file, Target: "/../../escape/x"}}, []string{"cat", "/escape/x"}, "a file", false},
		{"a read-only one", []Mount{{Source: volume, Target: "/v", ReadOnly: true}}, []string{"write", "/v/new", "x"}, "read-only file system", true},
		{"a writable one", []Mount{{Source: volume, Target: "/v"}}, []string{"write", "/v/new", "x"}, "", false},
		{"a mount in a mount", []Mount{{Source: filepath.Join(dir, "inner"), Target: "/v/in"}, {Source: volume, Target: "/v"}}, []string{"cat", "/v/in/x"}, "the inner one", false},
		{"memory", []Mount{{Tmpfs: true, Target: "/cache", SizeBytes: 1 << 20}}, []string{"write", "/cache/x", "x"}, "", false},
		{"another hosts file", []Mount{{Source: file, Target: "/etc/hosts"}}, []string{"cat", "/etc/hosts"}, "a file", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			exit, out := run(t, pod, ContainerConfig{Mounts: test.mounts, UID: 65532, GID: 65532}, test.args...)
			if (exit.Code != 0) != test.fails || !strings.Contains(out, test.want) {
				t.Errorf("got %d %q", exit.Code, out)
			}
		})
	}
	if b, err := os.ReadFile(filepath.Join(volume, "new")); err != nil || string(b) != "x" {
		t.Errorf("what the container wrote to its volume: %q %v", b, err)
	}
	for _, name := range []string{"etc", "run", "escape/x"} {
		if _, err := os.Lstat(filepath.Join(imageRoot, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s in the shared image: %v", name, err)
		}
	}
}

func TestTheRootIsWritableForOneContainerAlone(t *testing.T) {
	pod := startPod(t, PodConfig{})
	c, log := startContainer(t, pod, ContainerConfig{Name: "writer"}, "wait")
	log.await(t, "ready")
	if code, err := c.Exec(testContext(t), []string{"/bin/" + program, "write", "/greeting", "changed"}, nil, log, log); err != nil || code != 0 {
		t.Fatal(code, err, log)
	}
	var own bytes.Buffer
	if _, err := c.Exec(testContext(t), []string{"/bin/" + program, "cat", "/greeting"}, nil, &own, nil); err != nil || own.String() != "changed" {
		t.Errorf("the container itself reads %q %v", own.String(), err)
	}
	if _, out := run(t, pod, ContainerConfig{}, "cat", "/greeting"); out != "hello from the image" {
		t.Errorf("another container reads %q", out)
	}
}

func TestAReadOnlyRootTakesNoWritesButItsMountsDo(t *testing.T) {
	pod := startPod(t, PodConfig{})
	config := ContainerConfig{ReadOnlyRoot: true, Mounts: []Mount{{Tmpfs: true, Target: "/tmp"}}}
	if exit, out := run(t, pod, config, "write", "/greeting", "x"); exit.Code != 1 || !strings.Contains(out, "read-only file system") {
		t.Errorf("got %d %q", exit.Code, out)
	}
	if exit, out := run(t, pod, config, "write", "/tmp/x", "x"); exit.Code != 0 {
		t.Errorf("got %d %q", exit.Code, out)
	}
}

func TestAContainerSeesTheUsualFiles(t *testing.T) {
	pod := startPod(t, PodConfig{Hostname: "web-0", Search: []string{"svc.cluster.local"}, HostAliases: []HostAlias{{IP: defaultNameserver, Hostnames: []string{"a", "b"}}}})
	for file, want := range map[string]string{
		"/etc/hostname":      "web-0\n",
		"/etc/hosts":         "10.244.0.7\tweb-0\n169.254.1.53\ta\tb\n",
		"/etc/resolv.conf":   "nameserver 169.254.1.53\nsearch svc.cluster.local\n",
		"/dev/null":          "",
		"/proc/self/cmdline": "/bin/program\x00cat",
	} {
		if exit, out := run(t, pod, ContainerConfig{UID: 1000, GID: 1000}, "cat", file); exit.Code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: %d %q", file, exit.Code, out)
		}
	}
	if exit, out := run(t, pod, ContainerConfig{UID: 1000, GID: 1000}, "write", "/dev/null", "x"); exit.Code != 0 {
		t.Errorf("writing to /dev/null: %d %q", exit.Code, out)
	}
	_, out := run(t, pod, ContainerConfig{}, "cat", "/proc/self/mounts")
	if strings.Contains(out, t.Name()) || !strings.Contains(out, " /sys ") || !strings.Contains(out, " /dev/shm ") {
		t.Errorf("the mounts are:\n%s", out)
	}
}

func TestExecRunsBesideTheContainersProcess(t *testing.T) {
	pod := startPod(t, PodConfig{})
	for _, uid := range []int{0, 65532} {
		t.Run(fmt.Sprintf("as user %d", uid), func(t *testing.T) {
			c, log := startContainer(t, pod, ContainerConfig{UID: uid, GID: uid, Dir: "/work", Env: []string{"A=b", "HOME=/here"}}, "wait")
			log.await(t, "ready")
			var out, errs bytes.Buffer
			code, err := c.Exec(testContext(t), []string{program, "identity"}, nil, &out, &errs)
			if err != nil || code != 0 {
				t.Fatal(code, err, errs.String())
			}
			if s := out.String(); !strings.HasPrefix(s, fmt.Sprintf("uid=%d gid=%d pid=", uid, uid)) || strings.Contains(s, "pid=1 ") || !strings.Contains(s, "host=pod dir=/work home=/here") {
				t.Errorf("the command says %q", s)
			}
			out.Reset()
			if code, err := c.Exec(testContext(t), []string{program, "copy"}, strings.NewReader("through"), &out, &errs); err != nil || code != 0 || out.String() != "through" {
				t.Errorf("copying: %d %q %v", code, out.String(), err)
			}
			if code, err := c.Exec(testContext(t), []string{program, "exit", "3"}, nil, nil, nil); err != nil || code != 3 {
				t.Errorf("exit 3: %d %v", code, err)
			}
			if _, err := c.Exec(testContext(t), []string{"nonesuch"}, nil, nil, nil); err == nil || !strings.Contains(err.Error(), `"nonesuch": executable file not found in $PATH`) {
				t.Errorf("no such command: %v", err)
			}
			if _, err := c.Stop(testContext(t), testTime); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Exec(testContext(t), []string{program, "exit", "3"}, nil, nil, nil); !errors.Is(err, ErrNotRunning) {
				t.Errorf("in an ended container: %v", err)
			}
		})
	}
}

func TestAnExecThatIsGivenUpIsKilled(t *testing.T) {
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	c, log := startContainer(t, startPod(t, PodConfig{}), ContainerConfig{Mounts: []Mount{{Source: lock.Name(), Target: "/lock"}}}, "wait")
	log.await(t, "ready")
	ctx, cancel := context.WithCancel(testContext(t))
	out := newBuffer()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, []string{program, "hold", "/lock"}, nil, out, out)
		ended <- err
	}()
	out.await(t, "holding")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	released := make(chan error, 1)
	go func() { released <- syscall.Flock(int(lock.Fd()), syscall.LOCK_EX) }()
	select {
	case err := <-released:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testTime):
		t.Error("the command still runs")
	}
}

func TestAnExecsLeftoversDieWithTheContainer(t *testing.T) {
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	c, log := startContainer(t, startPod(t, PodConfig{}), ContainerConfig{Mounts: []Mount{{Source: lock.Name(), Target: "/lock"}}}, "wait")
	log.await(t, "ready")
	if code, err := c.Exec(testContext(t), []string{program, "leave"}, nil, nil, nil); err != nil || code != 0 {
		t.Fatal(code, err)
	}
	if exit, err := c.Stop(testContext(t), testTime); err != nil || exit.Code != 0 {
		t.Errorf("the exit was %+v, error %v", exit, err)
	}
}

func TestTheLogHasTheFormatOfTheCRI(t *testing.T) {
	pod := startPod(t, PodConfig{})
	log := filepath.Join(t.TempDir(), "pods", "main", "0.log")
	run(t, pod, ContainerConfig{LogPath: log}, "print", "to stdout", "to stderr")
	run(t, pod, ContainerConfig{LogPath: log}, "print", "again", strings.Repeat("y", maxLogLine+5))
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	line := regexp.MustCompile(`^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z) (stdout|stderr) ([FP]) (.*)$`)
	for s := range strings.Lines(string(b)) {
		m := line.FindStringSubmatch(strings.TrimSuffix(s, "\n"))
		if m == nil {
			t.Fatalf("not a line of a log: %.80q", s)
		}
		if _, err := time.Parse(time.RFC3339Nano, m[1]); err != nil {
			t.Error(err)
		}
		got = append(got, m[2]+" "+m[3]+" "+m[4])
	}
	for _, want := range []string{
		"stdout F to stdout", "stderr F to stderr", "stdout F again", "stderr P " + strings.Repeat("y", maxLogLine), "stderr F yyyyy",
	} {
		found := false
		for _, g := range got {
			found = found || g == want
		}
		if !found {
			t.Errorf("%.40q is not in the log", want)
		}
	}
	if len(got) != 5 {
		t.Errorf("the log has %d lines", len(got))
	}
}

func TestALogIsRotatedAtItsSizeWithoutLosingTheLastLines(t *testing.T) {
	log := filepath.Join(t.TempDir(), "0.log")
	const lines, size = 1000, 20 << 10
	run(t, startPod(t, PodConfig{}), ContainerConfig{LogPath: log, MaxLogSize: size}, "flood", fmt.Sprint(lines))
	next := -1
	for _, file := range []string{log + ".1", log} {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := f.Stat(); err != nil || info.Size() > size+1000 {
			t.Errorf("%s: %v %v", file, info.Size(), err)
		}
		for s := bufio.NewScanner(f); s.Scan(); next++ {
			var number int
			if _, err := fmt.Sscanf(strings.SplitN(s.Text(), " ", 4)[3], "line %d ", &number); err != nil {
				t.Fatal(err)
			}
			if next < 0 {
				next = number
			}
			if number != next {
				t.Fatalf("line %d comes where %d should be", number, next)
			}
		}
		f.Close()
	}
	if next != lines {
		t.Errorf("the last line is %d", next-1)
	}
}

func TestWithoutOverlaysAContainerGetsACopyOfItsImage(t *testing.T) {
	pod := startPod(t, PodConfig{})
	// An overlay wants both of its own directories on one file system.
	for i := range 3 {
		scratch := filepath.Join(pod.config.Dir, "containers", strconv.Itoa(i+1))
		if err := os.MkdirAll(scratch, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/proc", filepath.Join(scratch, "work")); err != nil {
			t.Fatal(err)
		}
	}
	if _, out := run(t, pod, ContainerConfig{}, "mounts"); strings.Contains(out, "overlay / overlay") {
		t.Errorf("nothing was copied:\n%s", out)
	}
	if exit, out := run(t, pod, ContainerConfig{UID: 1000}, "write", "/greeting", "changed"); exit.Code != 0 {
		t.Errorf("got %d %q", exit.Code, out)
	}
	account := Mount{Source: t.TempDir(), Target: "/var/run/secrets"}
	exit, out := run(t, pod, ContainerConfig{ReadOnlyRoot: true, Mounts: []Mount{account}}, "cat", "/greeting")
	if exit.Code != 0 || out != "hello from the image" {
		t.Errorf("got %d %q", exit.Code, out)
	}
}

// tinyProgram is a tiny program for amd64 that needs nothing: without
// arguments it sleeps for ever, with one it exits with 42.
func tinyProgram() []byte {
	const base, headers = 0x400000, 64 + 56
	code := []byte{
		0x48, 0x8b, 0x3c, 0x24, // mov rdi, [rsp]: the number of arguments
		0x48, 0x83, 0xff, 0x01, // cmp rdi, 1
		0x75, 0x09, // jne exit
		0xb8, 34, 0, 0, 0, // sleep: mov eax, SYS_pause
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp sleep
		0xbf, 42, 0, 0, 0, // exit: mov edi, 42
		0xb8, 60, 0, 0, 0, // mov eax, SYS_exit
		0x0f, 0x05, // syscall
	}
	size := uint64(headers + len(code))
	var b bytes.Buffer
	for _, part := range []any{
		elf.Header64{
			Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
			Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
		},
		elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x1000},
		code,
	} {
		// Writing fixed sizes to memory does not fail.
		_ = binary.Write(&b, binary.LittleEndian, part)
	}
	return b.Bytes()
}

func TestNothingHasToBeInTheImageForAnExec(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the program of this test is machine code of amd64")
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "tiny"), tinyProgram(), 0o755); err != nil {
		t.Fatal(err)
	}
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "tiny"), tinyProgram(), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, readOnly := range []bool{false, true} {
		pod := startPod(t, PodConfig{})
		c, err := pod.StartContainer(testContext(t), ContainerConfig{
			Name: "c", Root: root, Args: []string{"/tiny"}, UID: 65532, ReadOnlyRoot: readOnly, Mounts: []Mount{{Source: volume, Target: "/v"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/tiny", "/v/tiny"} {
			if code, err := c.Exec(testContext(t), []string{path, "x"}, nil, nil, nil); err != nil || code != 42 {
				t.Errorf("%s: the exit code is %d, error %v", path, code, err)
			}
		}
	}
}
