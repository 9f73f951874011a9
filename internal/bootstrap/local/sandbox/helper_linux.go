// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
)

// The names under which the running binary is executed again. They are also
// what the process list shows.
const (
	shimName = "capi-sandbox-shim"
	initName = "capi-sandbox-init"
)

// selfExe is the running binary, also when its file was replaced or removed.
const selfExe = "/proc/self/exe"

// ReexecMain returns at once unless the process was started as a helper of this
// package, in which case it does the helper's work and exits. It must be the
// first call of main and of TestMain.
func ReexecMain() {
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case shimName:
		if err := shimMain(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case initName:
		initMain()
	}
}

// helperEnvironment is all that helpers inherit: the starter's environment may
// hold secrets.
func helperEnvironment() []string {
	var env []string
	for _, name := range []string{"GOCOVERDIR", "GODEBUG", "GOTRACEBACK"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// spawner is the one thread that forks shims. A parent death signal belongs to
// the thread that forked, not to its process (golang/go#27505), so that thread
// has to live as long as the process does.
var spawner = sync.OnceValue(func() chan<- func() {
	requests := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range requests {
			f()
		}
	}()
	return requests
})

// spawnShim starts the shim with the given files from descriptor 3 on.
func spawnShim(name string, stderr *os.File, files ...*os.File) (*os.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	var p *os.Process
	done := make(chan struct{})
	spawner() <- func() {
		defer close(done)
		p, err = os.StartProcess(selfExe, []string{shimName, name}, &os.ProcAttr{
			Dir:   "/",
			Env:   helperEnvironment(),
			Files: append([]*os.File{null, null, stderr}, files...),
			Sys: &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
				Pdeathsig:   syscall.SIGKILL,
				Setsid:      true,
			},
		})
	}
	<-done
	return p, err
}
