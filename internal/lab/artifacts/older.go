// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package artifacts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// OlderOnly is the name of a ConfigMap that only the releases of
// [Set.WithOlder] hold, in the namespace of their provider.
const OlderOnly = "only-in-the-older-release"

// WithOlder copies the repository into an empty folder and adds an older release
// of each provider that versions names by its label. Such a release has the
// images of the built one, so that it runs, and one object more, which an
// upgrade must take away.
func (s *Set) WithOlder(dir string, versions map[string]string) error {
	if err := os.CopyFS(dir, os.DirFS(s.Repository)); err != nil {
		return fmt.Errorf("copying the repository: %w", err)
	}
	for label, older := range versions {
		releases, err := os.ReadDir(filepath.Join(dir, label))
		if err != nil || len(releases) != 1 {
			return fmt.Errorf("%s has %d releases, want one: %w", label, len(releases), err)
		}
		from, to := filepath.Join(dir, label, releases[0].Name()), filepath.Join(dir, label, older)
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			return fmt.Errorf("copying the release of %s: %w", label, err)
		}
		files, err := filepath.Glob(filepath.Join(to, "*-components.yaml"))
		if err != nil || len(files) > 1 {
			return fmt.Errorf("%s has %d files of components: %w", label, len(files), err)
		}
		for _, file := range files {
			if err := addOlderOnly(file); err != nil {
				return err
			}
		}
	}
	return nil
}

func addOlderOnly(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	// The first object of the components is the provider's namespace.
	_, after, found := strings.Cut(string(content), "\nkind: Namespace\n")
	_, after, named := strings.Cut(after, "\n  name: ")
	namespace, _, ended := strings.Cut(after, "\n")
	if !found || !named || !ended {
		return fmt.Errorf("%s holds no namespace", file)
	}
	extra := fmt.Sprintf("\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: %s\n  namespace: %s\n", OlderOnly, namespace)
	return os.WriteFile(file, append(content, extra...), 0o600)
}
