// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// file is one file of a volume.
type file struct {
	data []byte
	mode int32
}

// dataLink is the link through which all of a volume's files lead, as in the
// kubelet (pkg/volume/util/atomic_writer.go of k8s.io/kubernetes): programs that
// watch it see all files change at once.
const dataLink = "..data"

// writeVolume brings a volume's folder to the given files, all at once: they lie
// in a new folder, one link is turned to it, and the old folder goes. Nothing
// changes when all is as it should be.
func writeVolume(dir string, files map[string]file) error {
	for path := range files {
		if !filepath.IsLocal(path) || strings.HasPrefix(path, "..") {
			return fmt.Errorf("the path %q leads out of the volume", path)
		}
	}
	if err := makeDir(dir, 0o755); err != nil {
		return err
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if old != "" && sameFiles(filepath.Join(dir, old), files) {
		return linkFiles(dir, files)
	}
	fresh, err := os.MkdirTemp(dir, "..new-")
	if err != nil {
		return err
	}
	if err := fillDir(fresh, files); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	temporary := filepath.Join(dir, "..data_tmp")
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(fresh), temporary); err != nil {
		return err
	}
	if err := os.Rename(temporary, filepath.Join(dir, dataLink)); err != nil {
		return err
	}
	if err := linkFiles(dir, files); err != nil {
		return err
	}
	if old == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(dir, old))
}

func fillDir(dir string, files map[string]file) error {
	if err := os.Chmod(dir, 0o755); err != nil { // MkdirTemp makes it 0700
		return err
	}
	for path, f := range files {
		target := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, f.data, 0o600); err != nil {
			return err
		}
		if err := os.Chmod(target, os.FileMode(f.mode).Perm()); err != nil {
			return err
		}
	}
	return nil
}

// sameFiles says whether the folder holds these files and no others.
func sameFiles(dir string, files map[string]file) bool {
	found := 0
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		found++
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		want, ok := files[name]
		if !ok {
			return errors.New("not wanted any more")
		}
		have, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(have, want.data) {
			return errors.New("changed")
		}
		return nil
	})
	return err == nil && found == len(files)
}

// linkFiles makes the links that users of the volume see, and removes those that
// lead nowhere now.
func linkFiles(dir string, files map[string]file) error {
	want := map[string]bool{}
	for path := range files {
		top, _, _ := strings.Cut(path, string(filepath.Separator))
		want[top] = true
	}
	for name := range want {
		link, target := filepath.Join(dir, name), filepath.Join(dataLink, name)
		if have, err := os.Readlink(link); err == nil && have == target {
			continue
		}
		if err := os.RemoveAll(link); err != nil {
			return err
		}
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !want[entry.Name()] && !strings.HasPrefix(entry.Name(), "..") {
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
