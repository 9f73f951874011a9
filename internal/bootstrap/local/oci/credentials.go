// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// storedCredentials finds credentials in the files where docker and podman keep
// them. Unlike the library's own keychain it runs no credential helper: these
// are programs that a file names, and this provider runs none.
type storedCredentials struct{}

// Resolve implements [authn.Keychain].
func (storedCredentials) Resolve(target authn.Resource) (authn.Authenticator, error) {
	for _, file := range credentialFiles() {
		entry, err := storedEntry(file, target)
		if err != nil {
			return nil, fmt.Errorf("reading registry credentials: %w", err)
		}
		if entry == (types.AuthConfig{}) {
			continue
		}
		return authn.FromConfig(authn.AuthConfig{
			Username: entry.Username, Password: entry.Password, Auth: entry.Auth,
			IdentityToken: entry.IdentityToken, RegistryToken: entry.RegistryToken,
		}), nil
	}
	return authn.Anonymous, nil
}

// credentialFiles are the files to look at, in this order (docker's CLI
// reference, containers-auth.json(5)).
func credentialFiles() []string {
	var files []string
	add := func(dir string, parts ...string) {
		if dir != "" {
			files = append(files, filepath.Join(append([]string{dir}, parts...)...))
		}
	}
	// Without a home its folders are left out.
	home, _ := os.UserHomeDir()
	add(os.Getenv("REGISTRY_AUTH_FILE"))
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		add(dir, "config.json")
	} else {
		add(home, ".docker", "config.json")
	}
	add(os.Getenv("XDG_RUNTIME_DIR"), "containers", "auth.json")
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		add(dir, "containers", "auth.json")
	} else {
		add(home, ".config", "containers", "auth.json")
	}
	return files
}

// storedEntry reads the entry for a repository or its registry, or the zero
// value where there is none.
func storedEntry(file string, target authn.Resource) (types.AuthConfig, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return types.AuthConfig{}, nil
	}
	if err != nil {
		return types.AuthConfig{}, err
	}
	defer f.Close()
	stored, err := config.LoadFromReader(f)
	if err != nil {
		// The library's error may quote what it could not decode.
		return types.AuthConfig{}, fmt.Errorf("%s is not in the format of docker's config.json", file)
	}
	keys := []string{target.String(), target.RegistryStr()}
	if target.RegistryStr() == name.DefaultRegistry {
		keys = append(keys, authn.DefaultAuthKey, "docker.io")
	}
	for _, key := range keys {
		if entry, ok := stored.AuthConfigs[key]; ok {
			entry.ServerAddress = ""
			return entry, nil
		}
	}
	return types.AuthConfig{}, nil
}
