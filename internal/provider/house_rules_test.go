// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
)

// reservedNames are root attribute names that Terraform keeps for itself: the
// framework refuses a whole provider that uses one.
var reservedNames = []string{"connection", "count", "depends_on", "for_each", "lifecycle", "provider", "provisioner"}

func TestEveryResourceKeepsTheHouseRules(t *testing.T) {
	ctx := context.Background()
	for _, make := range New("test")().Resources(ctx) {
		res := make()
		var meta resource.MetadataResponse
		res.Metadata(ctx, resource.MetadataRequest{ProviderTypeName: "capi"}, &meta)
		t.Run(meta.TypeName, func(t *testing.T) {
			var resp resource.SchemaResponse
			res.Schema(ctx, resource.SchemaRequest{}, &resp)
			if resp.Diagnostics.HasError() {
				t.Fatal(resp.Diagnostics)
			}
			if resp.Schema.MarkdownDescription == "" {
				t.Error("it has no description")
			}
			checkAttributes(t, resp.Schema.Attributes)
			checkImport(t, res)
			checkIdentity(ctx, t, res)
			if _, ok := res.(resource.ResourceWithModifyPlan); !ok {
				t.Error("it has no ModifyPlan, so that a real destroy cannot be told from a replacement")
			}
			hasExample(t, "resources", meta.TypeName, "resource.tf")
			hasExample(t, "resources", meta.TypeName, "import.sh")
			hasPage(t, "resources", meta.TypeName)
		})
	}
}

func TestEveryFunctionKeepsTheHouseRules(t *testing.T) {
	ctx := context.Background()
	p, ok := New("test")().(provider.ProviderWithFunctions)
	if !ok {
		t.Fatal("the provider has no functions")
	}
	for _, make := range p.Functions(ctx) {
		f := make()
		var meta function.MetadataResponse
		f.Metadata(ctx, function.MetadataRequest{}, &meta)
		t.Run(meta.Name, func(t *testing.T) {
			var resp function.DefinitionResponse
			f.Definition(ctx, function.DefinitionRequest{}, &resp)
			if resp.Definition.Summary == "" || resp.Definition.MarkdownDescription == "" {
				t.Error("it has no summary or no description")
			}
			for _, parameter := range resp.Definition.Parameters {
				if parameter.GetMarkdownDescription() == "" {
					t.Errorf("the parameter %s has no description", parameter.GetName())
				}
			}
			hasExample(t, "functions", meta.Name, "function.tf")
			hasPage(t, "functions", meta.Name)
		})
	}
}

func checkAttributes(t *testing.T, attributes map[string]schema.Attribute) {
	t.Helper()
	if _, ok := attributes["timeouts"]; !ok {
		t.Error("it has no attribute timeouts")
	}
	for name, attribute := range attributes {
		if slices.Contains(reservedNames, name) {
			t.Errorf("the attribute %s has a reserved name", name)
		}
		undescribed(t, name, attribute)
	}
}

func checkImport(t *testing.T, res resource.Resource) {
	t.Helper()
	if _, ok := res.(resource.ResourceWithImportState); !ok {
		t.Error("it cannot be imported")
	}
}

func checkIdentity(ctx context.Context, t *testing.T, res resource.Resource) {
	t.Helper()
	identified, ok := res.(resource.ResourceWithIdentity)
	if !ok {
		t.Error("it has no resource identity")
		return
	}
	var resp resource.IdentitySchemaResponse
	identified.IdentitySchema(ctx, resource.IdentitySchemaRequest{}, &resp)
	if len(resp.IdentitySchema.Attributes) == 0 {
		t.Error("its identity has no attributes")
	}
	for name, attribute := range resp.IdentitySchema.Attributes {
		if attribute.GetDescription() == "" {
			t.Errorf("the identity attribute %s has no description", name)
		}
	}
}

// described is the part of an attribute that all kinds of schemas share.
type described interface {
	GetDescription() string
	GetMarkdownDescription() string
}

// undescribed fails the test for attribute and every attribute nested in it
// that has no description. The schema packages of resources, data sources and
// the provider share no interface for nested attributes, hence reflection.
func undescribed(t *testing.T, name string, attribute described) {
	t.Helper()
	if attribute.GetDescription() == "" && attribute.GetMarkdownDescription() == "" {
		t.Errorf("the attribute %s has no description", name)
	}
	for nestedName, nested := range nestedAttributes(reflect.ValueOf(attribute)) {
		undescribed(t, name+"."+nestedName, nested)
	}
}

func nestedAttributes(value reflect.Value) map[string]described {
	if value.Kind() != reflect.Struct {
		return nil
	}
	if object := value.FieldByName("NestedObject"); object.IsValid() {
		value = object
	}
	members := value.FieldByName("Attributes")
	if !members.IsValid() || members.Kind() != reflect.Map {
		return nil
	}
	nested := map[string]described{}
	for _, key := range members.MapKeys() {
		if attribute, ok := members.MapIndex(key).Interface().(described); ok {
			nested[key.String()] = attribute
		}
	}
	return nested
}

// hasExample checks that the example file exists that the documentation shows.
func hasExample(t *testing.T, kind, typeName, file string) {
	t.Helper()
	path := filepath.Join(repository, "examples", kind, typeName, file)
	if text, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(text)) == "" {
		t.Errorf("the example %s is missing or empty", filepath.Join("examples", kind, typeName, file))
	}
}

// hasPage checks that the generated documentation page exists.
func hasPage(t *testing.T, kind, typeName string) {
	t.Helper()
	path := filepath.Join("docs", kind, strings.TrimPrefix(typeName, "capi_")+".md")
	if _, err := os.Stat(filepath.Join(repository, path)); err != nil {
		t.Errorf("the page %s is missing: run make docs", path)
	}
}
