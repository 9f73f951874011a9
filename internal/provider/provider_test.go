// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
)

// repository is the top of the source tree, seen from this package's folder.
const repository = "../.."

// testProviders serves the provider inside the test process to the real CLI.
func testProviders() map[string]func() (tfprotov6.ProviderServer, error) {
	return map[string]func() (tfprotov6.ProviderServer, error){
		"capi": providerserver.NewProtocol6WithError(New("test")()),
	}
}

func TestTheRegistryManifestNamesTheProtocolThatIsServed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "terraform-registry-manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Version  int `json:"version"`
		Metadata struct {
			ProtocolVersions []string `json:"protocol_versions"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%d.0", ProtocolVersion)
	if manifest.Version != 1 || len(manifest.Metadata.ProtocolVersions) != 1 || manifest.Metadata.ProtocolVersions[0] != want {
		t.Errorf("the manifest says %s, want version 1 with protocol %s alone", text, want)
	}
}

func TestTheProtocolServerAcceptsAllSchemas(t *testing.T) {
	server, err := testProviders()["capi"]()
	if err != nil {
		t.Fatal(err)
	}
	resp, err := server.GetProviderSchema(context.Background(), &tfprotov6.GetProviderSchemaRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, diagnostic := range resp.Diagnostics {
		t.Errorf("%s: %s", diagnostic.Summary, diagnostic.Detail)
	}
}

func TestEveryProviderAttributeIsDescribedAndOptional(t *testing.T) {
	var resp provider.SchemaResponse
	New("test")().Schema(context.Background(), provider.SchemaRequest{}, &resp)
	if len(resp.Schema.Attributes) == 0 {
		t.Fatal("the provider schema has no attributes")
	}
	for name, attribute := range resp.Schema.Attributes {
		if attribute.IsRequired() {
			t.Errorf("%s is required: a plan must work with an empty provider block", name)
		}
		undescribed(t, name, attribute)
	}
	if resp.Schema.MarkdownDescription == "" {
		t.Error("the provider has no description")
	}
}

func TestEveryDataSourceKeepsTheHouseRules(t *testing.T) {
	ctx := context.Background()
	for _, make := range New("test")().DataSources(ctx) {
		source := make()
		var meta datasource.MetadataResponse
		source.Metadata(ctx, datasource.MetadataRequest{ProviderTypeName: "capi"}, &meta)
		t.Run(meta.TypeName, func(t *testing.T) {
			var resp datasource.SchemaResponse
			source.Schema(ctx, datasource.SchemaRequest{}, &resp)
			for name, attribute := range resp.Schema.Attributes {
				undescribed(t, name, attribute)
			}
			hasExample(t, "data-sources", meta.TypeName, "data-source.tf")
			hasPage(t, "data-sources", meta.TypeName)
		})
	}
}
