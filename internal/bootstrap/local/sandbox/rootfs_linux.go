// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// buildRoot makes the container's file system in this process's own mount
// namespace and moves into it.
func buildRoot(config *initConfig) error {
	// Nothing that is mounted from here on shows outside. The namespace is owned
	// by another user namespace than the one it was copied from, so the kernel
	// keeps anything from coming off what is mounted already.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	root := filepath.Join(config.Scratch, "root")
	if err := mountImage(config, root); err != nil {
		return err
	}
	if err := mountSystem(root); err != nil {
		return err
	}
	if err := mountVolumes(config, root); err != nil {
		return err
	}
	if config.Dir != "" {
		if _, err := inRoot(root, config.Dir, true); err != nil {
			return fmt.Errorf("making the working directory %s: %w", config.Dir, err)
		}
	}
	if err := pivot(root); err != nil {
		return err
	}
	if config.ReadOnlyRoot {
		if err := remountReadOnly("/"); err != nil {
			return fmt.Errorf("making the root file system read-only: %w", err)
		}
	}
	return nil
}

// mountImage puts the image at root, with a writable layer on top of it: an
// overlay where the kernel has them for users (Linux 5.11), else a copy.
func mountImage(config *initConfig, root string) error {
	layers := make([]*os.File, 3)
	defer closeAll(layers)
	for i, dir := range []string{config.Root, filepath.Join(config.Scratch, "upper"), filepath.Join(config.Scratch, "work")} {
		f, err := os.Open(dir)
		if err != nil {
			return fmt.Errorf("opening the image: %w", err)
		}
		layers[i] = f
	}
	// Named by descriptor, a path may hold colons and commas.
	options := fmt.Sprintf("lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/%d,userxattr",
		layers[0].Fd(), layers[1].Fd(), layers[2].Fd())
	if unix.Mount("overlay", root, "overlay", 0, options) == nil {
		return nil
	}
	if err := copyTree(config.Root, root); err != nil {
		return fmt.Errorf("copying the image: %w", err)
	}
	if err := unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mounting the copy of the image: %w", err)
	}
	return nil
}

// copyTree copies a directory: the contents of files, their modes and symbolic
// links.
func copyTree(from, to string) error {
	var dirs []func() error
	err := filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case d.IsDir():
			dirs = append(dirs, func() error { return os.Chmod(target, info.Mode().Perm()) })
			if err := os.MkdirAll(target, 0o700); err != nil {
				return err
			}
			return nil
		case d.Type() == fs.ModeSymlink:
			link, err := os.Readlink(file)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case d.Type().IsRegular():
			return copyFile(file, target, info.Mode().Perm())
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, chmod := range slices.Backward(dirs) {
		if err := chmod(); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// mountSystem makes /proc, /dev and /sys.
func mountSystem(root string) error {
	proc, err := inRoot(root, "/proc", true)
	if err != nil {
		return fmt.Errorf("making /proc: %w", err)
	}
	if err := unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		// Inside a container of another engine parts of /proc are covered, and the
		// kernel lets nobody mount it uncovered.
		if err := unix.Mount("/proc", proc, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mounting /proc: %w", err)
		}
	}
	if err := mountDev(root); err != nil {
		return err
	}
	sys, err := inRoot(root, "/sys", true)
	if err != nil {
		return fmt.Errorf("making /sys: %w", err)
	}
	if err := bind("/sys", sys, true); err != nil {
		return fmt.Errorf("mounting /sys: %w", err)
	}
	return nil
}

func mountDev(root string) error {
	dev, err := inRoot(root, "/dev", true)
	if err != nil {
		return fmt.Errorf("making /dev: %w", err)
	}
	if err := mountTmpfs(dev, 0o755, 1<<20); err != nil {
		return fmt.Errorf("mounting /dev: %w", err)
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		target := filepath.Join(dev, name)
		if err := touch(target); err != nil {
			return fmt.Errorf("making /dev/%s: %w", name, err)
		}
		if err := bind("/dev/"+name, target, false); err != nil {
			return fmt.Errorf("mounting /dev/%s: %w", name, err)
		}
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, filepath.Join(dev, name)); err != nil {
			return fmt.Errorf("making /dev/%s: %w", name, err)
		}
	}
	for _, name := range []string{"shm", "pts"} {
		if err := os.Mkdir(filepath.Join(dev, name), 0o755); err != nil {
			return fmt.Errorf("making /dev/%s: %w", name, err)
		}
	}
	if err := mountTmpfs(filepath.Join(dev, "shm"), 0o1777, 64<<20); err != nil {
		return fmt.Errorf("mounting /dev/shm: %w", err)
	}
	// Terminals are a convenience: some kernels keep them from user namespaces.
	_ = unix.Mount("devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
	return nil
}

// mountVolumes does the mounts of the configuration after the generated files
// of /etc, parents before children.
func mountVolumes(config *initConfig, root string) error {
	var mounts []Mount
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		mounts = append(mounts, Mount{Source: filepath.Join(config.Etc, name), Target: "/etc/" + name})
	}
	depth := func(m Mount) int { return strings.Count(filepath.Clean(m.Target), "/") }
	volumes := slices.Clone(config.Mounts)
	slices.SortStableFunc(volumes, func(a, b Mount) int { return depth(a) - depth(b) })
	for _, m := range append(mounts, volumes...) {
		if err := mountVolume(m, root); err != nil {
			return fmt.Errorf("mounting %s: %w", m.Target, err)
		}
	}
	return nil
}

func mountVolume(m Mount, root string) error {
	if m.Tmpfs {
		target, err := inRoot(root, m.Target, true)
		if err != nil {
			return err
		}
		return mountTmpfs(target, 0o1777, m.SizeBytes)
	}
	info, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	target, err := inRoot(root, m.Target, info.IsDir())
	if err != nil {
		return err
	}
	return bind(m.Source, target, m.ReadOnly)
}

// inRoot resolves a path of the container to one of this namespace, symbolic
// links included, and makes it if it is not there.
func inRoot(root, path string, dir bool) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%q is not an absolute path", path)
	}
	target, err := securejoin.SecureJoin(root, path)
	if err != nil {
		return "", err
	}
	if dir {
		return target, os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return "", err
	}
	return target, touch(target)
}

// touch makes an empty file unless there is one, to mount on.
func touch(file string) error {
	if _, err := os.Lstat(file); err == nil {
		return nil
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

func mountTmpfs(target string, mode fs.FileMode, size int64) error {
	options := fmt.Sprintf("mode=%o", mode)
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	return unix.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
}

// bind mounts source with what is mounted below it: the kernel refuses to leave
// that out here, since it could bare what was covered.
func bind(source, target string, readOnly bool) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if !readOnly {
		return nil
	}
	return remountReadOnly(target)
}

// remountReadOnly keeps the mount's other flags: the kernel lets nobody drop
// those that a mount was inherited with.
func remountReadOnly(target string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return err
	}
	// ST_* and MS_* are the same bits for these (statfs(2)), but ST_RELATIME.
	flags := uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME)
	if st.Flags&unix.ST_RELATIME != 0 {
		flags |= unix.MS_RELATIME
	}
	return unix.Mount("", target, "", flags|unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// pivot makes root the root of this mount namespace and lets go of the old one.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return fmt.Errorf("going to the new root: %w", err)
	}
	return pivotHere()
}

// pivotHere makes the working directory the root.
func pivotHere() error {
	// Onto itself: the old root then lies on top of the new one (pivot_root(2)).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("letting go of the old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("going to the new root: %w", err)
	}
	return nil
}
