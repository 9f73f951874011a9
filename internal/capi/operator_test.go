// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestOperatorObjectHoldsNoSecretAndNamesItsParts(t *testing.T) {
	dir := t.TempDir()
	writeRelease(t, dir, "infrastructure-proxmox", "v0.9.0")
	p := Provider{Type: Infrastructure, Name: "proxmox", Version: "v0.9.0", Credentials: &ProxmoxCredentials{
		URL: "https://pve.example:8006", Token: "capi@pve!capi-token", Secret: "the-secret", CA: "an authority",
	}}
	found, err := fetch(t.Context(), p, Source{Repository: "file://" + dir})
	if err != nil {
		t.Fatal(err)
	}
	if found.namespace != "capmox-system" {
		t.Errorf("the namespace is %q", found.namespace)
	}
	secret := p.configSecret(found.namespace)
	o := &operation{OperatorOptions: OperatorOptions{Owner: "an-owner"}}
	object, err := o.object(p, found, entry{config: secret.GetName()})
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(object.Object)
	for _, want := range []string{
		"kind:InfrastructureProvider", "name:proxmox namespace:capmox-system", "version:v0.9.0", "configSecret:map[name:" + secret.GetName(),
		componentsLabel + ":" + found.hash(), "PROXMOX_INSECURE", "SSL_CERT_DIR", "an-owner",
		// A merge patch replaces lists: it must hold all of the container.
		"image: ghcr.io/ionos-cloud/cluster-api-provider-proxmox:v0.9.0", "name: PROXMOX_URL",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "the-secret") {
		t.Error("it holds the secret")
	}
	if value, _, _ := unstructured.NestedString(secret.Object, "data", "PROXMOX_SECRET"); value != base64.StdEncoding.EncodeToString([]byte("the-secret")) {
		t.Errorf("the Secret holds %q", value)
	}
	changed := p
	changed.Credentials = &ProxmoxCredentials{URL: p.Credentials.URL, Token: p.Credentials.Token, Secret: "another", CA: p.Credentials.CA}
	if changed.configSecret(found.namespace).GetName() == secret.GetName() {
		t.Error("another secret has the same name")
	}
}

func TestOperatorComponentsComeOutAsTheyWentIn(t *testing.T) {
	dir := t.TempDir()
	writeRelease(t, dir, "infrastructure-proxmox", "v0.9.0")
	p := Provider{Type: Infrastructure, Name: "proxmox", Version: "v0.9.0"}
	found, err := fetch(t.Context(), p, Source{Repository: "file://" + dir})
	if err != nil {
		t.Fatal(err)
	}
	object := found.configMap()
	encoded, _, _ := unstructured.NestedString(object.Object, "binaryData", "components")
	compressed, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(reader)
	if err != nil || string(content) != fakeComponents {
		t.Errorf("got %q, %v", content, err)
	}
	if metadata, _, _ := unstructured.NestedString(object.Object, "data", "metadata"); metadata != fakeMetadata {
		t.Errorf("the metadata is %q", metadata)
	}
	again, err := fetch(t.Context(), p, Source{Repository: "file://" + dir})
	if err != nil || again.hash() != found.hash() {
		t.Errorf("the same components have another hash, %v", err)
	}
}

func TestOperatorState(t *testing.T) {
	object := func(generation, seen int64, installed, ready string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{
			"observedGeneration": seen, "installedVersion": installed,
			"conditions": []any{map[string]any{"type": "Ready", "status": ready, "reason": "Because", "message": "of it"}},
		}}}
		u.SetGeneration(generation)
		return u
	}
	for name, test := range map[string]struct {
		object *unstructured.Unstructured
		done   bool
		says   string
	}{
		"what is installed and ready is done":   {object: object(2, 2, "v0.9.0", "True"), done: true},
		"a change not worked in yet is not":     {object: object(3, 2, "v0.9.0", "True"), says: "generation 2 of 3"},
		"another version is not":                {object: object(2, 2, "v0.8.0", "True"), says: `installed is "v0.8.0"`},
		"what is not ready says why":            {object: object(2, 2, "v0.9.0", "False"), says: "Ready is false: Because: of it"},
		"what the operator has not seen is not": {object: &unstructured.Unstructured{Object: map[string]any{}}, says: `installed is ""`},
	} {
		t.Run(name, func(t *testing.T) {
			done, says, err := operatorState(test.object, "v0.9.0")
			if err != nil || done != test.done || !strings.Contains(says, test.says) {
				t.Errorf("got %v, %q, %v", done, says, err)
			}
		})
	}
}
