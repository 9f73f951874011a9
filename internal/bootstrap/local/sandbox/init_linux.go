// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// usualCapabilities are what container runtimes leave to UID 0 of a container
// that is not privileged (containerd, pkg/oci, defaultUnixCaps).
var usualCapabilities = map[uintptr]bool{
	unix.CAP_CHOWN: true, unix.CAP_DAC_OVERRIDE: true, unix.CAP_FSETID: true, unix.CAP_FOWNER: true,
	unix.CAP_MKNOD: true, unix.CAP_NET_RAW: true, unix.CAP_SETGID: true, unix.CAP_SETUID: true,
	unix.CAP_SETFCAP: true, unix.CAP_SETPCAP: true, unix.CAP_NET_BIND_SERVICE: true,
	unix.CAP_SYS_CHROOT: true, unix.CAP_KILL: true, unix.CAP_AUDIT_WRITE: true,
}

// initMain is the life of a container's init: it builds the container around
// itself and becomes its command. What goes wrong is written to descriptor 4,
// which closes by itself when the command is executed.
func initMain() {
	status := os.NewFile(4, "status")
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	unix.CloseOnExec(mountsFD)
	err := becomeContainer()
	if err == nil {
		err = errors.New("the command was not executed")
	}
	// The shim reads it; if that is gone, so is this process.
	_, _ = status.WriteString(err.Error())
	os.Exit(127)
}

// becomeContainer returns only with an error.
func becomeContainer() (err error) {
	// Capabilities belong to a thread, and exec takes those of the calling one.
	runtime.LockOSThread()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the container's init failed: %v", r)
		}
	}()
	var config initConfig
	if err := json.NewDecoder(os.NewFile(3, "configuration")).Decode(&config); err != nil {
		return fmt.Errorf("reading the container's configuration: %w", err)
	}
	if err := mapUser(config.UID, config.GID); err != nil {
		return err
	}
	unix.Umask(0o022)
	if config.Join {
		if err := enterTree(); err != nil {
			return err
		}
	} else {
		if err := unix.Sethostname([]byte(config.Hostname)); err != nil {
			return fmt.Errorf("setting the host name: %w", err)
		}
		if err := buildRoot(&config); err != nil {
			return err
		}
	}
	path, env, err := command(&config)
	if err != nil {
		return err
	}
	if err := dropCapabilities(&config); err != nil {
		return err
	}
	if err := syscall.Exec(path, config.Args, env); err != nil {
		return fmt.Errorf("executing %s: %w", path, err)
	}
	return nil
}

// mountsFD is where a command that joins a container finds a copy of that one's
// mounts.
const mountsFD = 5

// enterTree puts the copy of the container's mounts in place of those that the
// process was started with.
func enterTree() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.MoveMount(mountsFD, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting the container's file systems: %w", err)
	}
	if err := unix.Fchdir(mountsFD); err != nil {
		return fmt.Errorf("going to the container's root: %w", err)
	}
	return pivotHere()
}

// mapUser gives the user namespace that this process was started in its one
// user and group. The process does it itself, since the shim has no /proc that
// shows it the numbers of its own PID namespace.
func mapUser(uid, gid int) error {
	for _, f := range []struct{ name, content string }{
		{"setgroups", "deny"},
		{"uid_map", fmt.Sprintf("%d 0 1", uid)},
		{"gid_map", fmt.Sprintf("%d 0 1", gid)},
	} {
		if err := os.WriteFile("/proc/self/"+f.name, []byte(f.content), 0); err != nil {
			return fmt.Errorf("mapping user %d and group %d: %w", uid, gid, err)
		}
	}
	return nil
}

// command goes to the working directory and finds the command in the container.
func command(config *initConfig) (path string, env []string, err error) {
	dir := config.Dir
	if dir == "" {
		dir = "/"
	}
	if err := os.Chdir(dir); err != nil {
		return "", nil, fmt.Errorf("going to the working directory: %w", err)
	}
	os.Clearenv()
	env = config.Env
	for _, entry := range env {
		if k, v, ok := strings.Cut(entry, "="); ok && k != "" {
			if err := os.Setenv(k, v); err != nil {
				return "", nil, fmt.Errorf("the environment's variable %q: %w", k, err)
			}
		}
	}
	home := "/"
	if config.UID == 0 {
		home = "/root"
	}
	for _, d := range []struct{ key, value string }{{"PATH", defaultPath}, {"HOME", home}} {
		if _, ok := os.LookupEnv(d.key); !ok {
			env = append(env, d.key+"="+d.value)
			if err := os.Setenv(d.key, d.value); err != nil {
				return "", nil, err
			}
		}
	}
	path, err = exec.LookPath(config.Args[0])
	if errors.Is(err, exec.ErrDot) {
		err = nil
	}
	if err != nil {
		return "", nil, err
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	return path, env, nil
}

// dropCapabilities leaves the calling thread those that the command may have
// after exec.
func dropCapabilities(config *initConfig) error {
	if !config.Privileged || config.UID != 0 {
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if config.UID == 0 && usualCapabilities[c] {
				continue
			}
			err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
			// EINVAL: a capability that this kernel does not know.
			if err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("dropping capability %d: %w", c, err)
			}
		}
	}
	// Without inheritable capabilities the ambient ones go too, and what is left
	// after exec is the bounding set for UID 0 and nothing for others.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("reading capabilities: %w", err)
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	if config.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("forbidding new privileges: %w", err)
		}
	}
	return nil
}
