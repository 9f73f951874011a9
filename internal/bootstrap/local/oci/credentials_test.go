// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package oci

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

func TestStoredCredentialsAreFound(t *testing.T) {
	auth := base64.StdEncoding.EncodeToString([]byte("user:pass"))
	of := func(key string) string { return `{"auths":{"` + key + `":{"auth":"` + auth + `"}}}` }
	for name, test := range map[string]struct {
		files map[string]string // below the home
		env   map[string]string // values below the home
		ref   string
		user  string
	}{
		"nowhere":                                 {ref: "quay.io/a/b"},
		"in docker's file":                        {files: map[string]string{".docker/config.json": of("quay.io")}, ref: "quay.io/a/b", user: "user"},
		"for another registry":                    {files: map[string]string{".docker/config.json": of("ghcr.io")}, ref: "quay.io/a/b"},
		"for Docker Hub by its old key":           {files: map[string]string{".docker/config.json": of("https://index.docker.io/v1/")}, ref: "nginx", user: "user"},
		"for one repository":                      {files: map[string]string{".config/containers/auth.json": of("quay.io/a/b")}, ref: "quay.io/a/b", user: "user"},
		"where DOCKER_CONFIG says":                {files: map[string]string{"d/config.json": of("quay.io")}, env: map[string]string{"DOCKER_CONFIG": "d"}, ref: "quay.io/a/b", user: "user"},
		"where REGISTRY_AUTH_FILE says":           {files: map[string]string{"f.json": of("quay.io")}, env: map[string]string{"REGISTRY_AUTH_FILE": "f.json"}, ref: "quay.io/a/b", user: "user"},
		"in podman's file of the session":         {files: map[string]string{"run/containers/auth.json": of("quay.io")}, env: map[string]string{"XDG_RUNTIME_DIR": "run"}, ref: "quay.io/a/b", user: "user"},
		"not by running what docker's file names": {files: map[string]string{".docker/config.json": `{"credsStore":"touch-marker"}`}, ref: "quay.io/a/b"},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			for _, v := range []string{"DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"} {
				t.Setenv(v, "")
			}
			t.Setenv("HOME", home)
			for k, v := range test.env {
				t.Setenv(k, filepath.Join(home, v))
			}
			for file, content := range test.files {
				writeCredentials(t, filepath.Join(home, file), content)
			}
			helper := filepath.Join(home, "docker-credential-touch-marker")
			writeCredentials(t, helper, "#!/bin/sh\ntouch \"$0.ran\"\n")
			if err := os.Chmod(helper, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", home+string(os.PathListSeparator)+os.Getenv("PATH"))
			if got := credentialsFor(t, test.ref); got.Username != test.user || test.user != "" && got.Password != "pass" {
				t.Errorf("found the user %q, not %q", got.Username, test.user)
			}
			if _, err := os.Stat(helper + ".ran"); err == nil {
				t.Error("the credential helper was run")
			}
		})
	}
}

// credentialsFor asks for the credentials of one reference.
func credentialsFor(t *testing.T, ref string) authn.AuthConfig {
	t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	found, err := storedCredentials{}.Resolve(tag.Context())
	if err != nil {
		t.Fatal(err)
	}
	config, err := found.Authorization()
	if err != nil {
		t.Fatal(err)
	}
	return *config
}

func writeCredentials(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestACredentialFileThatCannotBeReadIsNamedWithoutItsContent(t *testing.T) {
	home := t.TempDir()
	t.Setenv("DOCKER_CONFIG", home)
	t.Setenv("REGISTRY_AUTH_FILE", "")
	file := filepath.Join(home, "config.json")
	writeCredentials(t, file, `{"auths":{"quay.io":{"auth":"c2VjcmV0"}}}`)
	tag, err := name.NewTag("quay.io/a/b")
	if err != nil {
		t.Fatal(err)
	}
	_, err = storedCredentials{}.Resolve(tag.Context())
	if err == nil || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "secret") {
		t.Errorf("the error is %v", err)
	}
}
