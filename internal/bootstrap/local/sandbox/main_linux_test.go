// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"bufio"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is the name under which the test binary is the content of the image
// that the tests run.
const program = "program"

// imageRoot is the unpacked image of all tests.
var imageRoot string

func TestMain(m *testing.M) {
	ReexecMain()
	if filepath.Base(os.Args[0]) == program {
		programMain(os.Args[1:])
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == "starter" {
		starterMain(os.Args[2])
	}
	code, err := withImage(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// withImage makes the image's root for the time of run.
func withImage(run func() int) (int, error) {
	dir, err := os.MkdirTemp("", "sandbox-image-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	imageRoot = dir
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	for _, d := range []string{"bin", "var", "escape"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return 0, err
		}
	}
	if err := copyFile(self, filepath.Join(dir, "bin", program), 0o755); err != nil {
		return 0, err
	}
	// As in Debian's images: an absolute link that must stay inside the root.
	if err := os.Symlink("/run", filepath.Join(dir, "var", "run")); err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(dir, "greeting"), []byte("hello from the image"), 0o644); err != nil {
		return 0, err
	}
	return run(), nil
}

// libraries are mounts that a test binary with cgo (with -race, say) needs.
func libraries(t testing.TB) []Mount {
	t.Helper()
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var mounts []Mount
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		for _, dir := range []string{"/lib", "/lib64", "/usr/lib"} {
			if _, err := os.Stat(dir); err == nil {
				mounts = append(mounts, Mount{Source: dir, Target: dir, ReadOnly: true})
			}
		}
	}
	return mounts
}

// programMain is what runs in the tests' containers.
func programMain(args []string) {
	if len(args) == 0 {
		return
	}
	switch args[0] {
	case "exit":
		code, _ := strconv.Atoi(args[1])
		os.Exit(code)
	case "print":
		fmt.Fprintln(os.Stdout, args[1])
		fmt.Fprintln(os.Stderr, args[2])
	case "flood":
		n, _ := strconv.Atoi(args[1])
		for i := range n {
			fmt.Printf("line %d %s\n", i, strings.Repeat("x", 100))
		}
	case "wait":
		programWait()
	case "ignore":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		stay()
	case "identity":
		programIdentity()
	case "cat":
		programCat(args[1])
	case "mounts":
		programCat("/proc/self/mounts")
	case "write":
		if err := os.WriteFile(args[1], []byte(args[2]), 0o644); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "copy":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "resolve":
		addrs, err := (&net.Resolver{PreferGo: true}).LookupHost(context.Background(), args[1])
		fmt.Println(addrs, err)
	case "fetch":
		programFetch(args[1])
	case "serve":
		programServe(args[1])
	case "echo":
		programEcho(args[1])
	case "hold":
		programHold(args[1], args[2:]...)
	case "leave":
		// The child keeps the streams when this process has ended.
		startProgram("ignore")
	}
}

// startProgram starts the program again, as a child with its streams.
func startProgram(args ...string) {
	_, err := os.StartProcess("/bin/"+program, append([]string{program}, args...), &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// programHold takes a shared lock on a file, starts a child that does the same
// if there are further arguments, and stays.
func programHold(file string, more ...string) {
	f, err := os.Open(file)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if len(more) > 0 {
		startProgram(append([]string{"hold", file}, more[1:]...)...)
	}
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	fmt.Println("holding", len(more))
	stay()
}

// stay blocks for ever. A bare select would be a deadlock to the Go runtime.
func stay() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR2)
	<-c
}

func programWait() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGUSR1)
	fmt.Println("ready")
	s := <-c
	fmt.Println("got", s)
	if s == syscall.SIGUSR1 {
		os.Exit(7)
	}
}

func programIdentity() {
	host, _ := os.Hostname()
	dir, _ := os.Getwd()
	fmt.Printf("uid=%d gid=%d pid=%d host=%s dir=%s home=%s\n", os.Getuid(), os.Getgid(), os.Getpid(), host, dir, os.Getenv("HOME"))
	f, err := os.Open("/proc/self/status")
	if err != nil {
		fmt.Println(err)
		return
	}
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "Cap") || strings.HasPrefix(s.Text(), "NoNewPrivs") {
			fmt.Println(s.Text())
		}
	}
	fmt.Println("env", len(os.Environ()))
}

func programCat(file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_, _ = os.Stdout.Write(b)
}

func programFetch(url string) {
	client := http.Client{Timeout: 20 * time.Second}
	r, err := client.Get(url)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer r.Body.Close()
	_, _ = io.Copy(os.Stdout, r.Body)
}

func programServe(address string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	host, _ := os.Hostname()
	fmt.Println(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s says hello to %s", host, r.RemoteAddr)
	})))
}

// programEcho sends each connection's bytes back once it has all of them.
func programEcho(address string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		go func() {
			defer c.Close()
			b, _ := io.ReadAll(c)
			_, _ = c.Write(b)
		}()
	}
}

// starterMain starts a pod with a container that holds a lock on dir/lock with
// three processes, and waits to be killed.
func starterMain(dir string) {
	ctx := context.Background()
	var mounts []Mount
	if err := json.Unmarshal([]byte(os.Getenv("MOUNTS")), &mounts); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	pod, err := Start(ctx, PodConfig{Name: "test/killed", Dir: filepath.Join(dir, "pod"), IP: netip.MustParseAddr("10.244.0.9")})
	if err == nil {
		_, err = pod.StartContainer(ctx, ContainerConfig{
			Name: "c", Root: os.Getenv("IMAGE"), Args: []string{"/bin/" + program, "hold", "/lock", "x", "y"},
			Mounts: append(mounts, Mount{Source: filepath.Join(dir, "lock"), Target: "/lock"}),
			Stdout: os.Stdout, Stderr: os.Stderr,
		})
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("shim", pod.shim.process.Pid)
	stay()
}
