// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"reflect"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// testAccess makes an access object with the given members; the others are null.
func testAccess(members map[string]attr.Value) types.Object {
	all := map[string]attr.Value{
		"kubeconfig": types.StringNull(), "kubeconfig_path": types.StringNull(), "context": types.StringNull(),
		"cluster_name": types.StringNull(), "ephemeral_cluster": types.ObjectNull(ephemeralAccessTypes), "uid": types.StringNull(),
	}
	for name, value := range members {
		all[name] = value
	}
	return types.ObjectValueMust(accessTypes, all)
}

func testEphemeral(name, runtime, spec attr.Value) types.Object {
	return types.ObjectValueMust(ephemeralAccessTypes, map[string]attr.Value{"name": name, "runtime": runtime, "spec": spec})
}

func text(s string) types.String { return types.StringValue(s) }

func TestAccessInputAndOutputHaveTheSameType(t *testing.T) {
	want := types.ObjectType{AttrTypes: accessTypes}
	for name, attribute := range map[string]schema.Attribute{"input": accessInput("A."), "output": accessOutput("A.")} {
		if got := attribute.GetType(); !got.Equal(want) {
			t.Errorf("%s has the type %s, want %s", name, got, want)
		}
	}
}

func TestAccessNamesExactlyOneSource(t *testing.T) {
	unknown := types.StringUnknown()
	for name, test := range map[string]struct {
		members map[string]attr.Value
		wrong   bool
	}{
		"a kubeconfig alone is right":                      {map[string]attr.Value{"kubeconfig": text("k")}, false},
		"a path with a context is right":                   {map[string]attr.Value{"kubeconfig_path": text("p"), "context": text("c")}, false},
		"an entry of the clusters map is right":            {map[string]attr.Value{"cluster_name": text("c")}, false},
		"an ephemeral cluster is right":                    {map[string]attr.Value{"ephemeral_cluster": testEphemeral(text("e"), text("local"), text("{}"))}, false},
		"nothing is wrong":                                 {nil, true},
		"a uid alone is wrong":                             {map[string]attr.Value{"uid": text("u")}, true},
		"two sources are wrong":                            {map[string]attr.Value{"kubeconfig": text("k"), "cluster_name": text("c")}, true},
		"two known sources beside an unknown are wrong":    {map[string]attr.Value{"kubeconfig": text("k"), "cluster_name": text("c"), "kubeconfig_path": unknown}, true},
		"an unknown source is left to the apply":           {map[string]attr.Value{"kubeconfig": unknown}, false},
		"a known source beside an unknown is left":         {map[string]attr.Value{"kubeconfig": text("k"), "cluster_name": unknown}, false},
		"an unknown ephemeral cluster is left":             {map[string]attr.Value{"ephemeral_cluster": types.ObjectUnknown(ephemeralAccessTypes)}, false},
		"a context without a kubeconfig is wrong":          {map[string]attr.Value{"cluster_name": text("c"), "context": text("x")}, true},
		"a context beside an unknown kubeconfig is left":   {map[string]attr.Value{"kubeconfig": unknown, "context": text("x")}, false},
		"an ephemeral cluster with an unknown member left": {map[string]attr.Value{"ephemeral_cluster": testEphemeral(text("e"), text("local"), unknown)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var resp validator.ObjectResponse
			accessSource{}.ValidateObject(context.Background(), validator.ObjectRequest{Path: path.Root("cluster"), ConfigValue: testAccess(test.members)}, &resp)
			if resp.Diagnostics.HasError() != test.wrong {
				t.Errorf("diagnostics %v, want an error: %v", resp.Diagnostics, test.wrong)
			}
		})
	}
	for name, object := range map[string]types.Object{"unknown": types.ObjectUnknown(accessTypes), "null": types.ObjectNull(accessTypes)} {
		t.Run("an "+name+" object is left alone", func(t *testing.T) {
			var resp validator.ObjectResponse
			accessSource{}.ValidateObject(context.Background(), validator.ObjectRequest{Path: path.Root("cluster"), ConfigValue: object}, &resp)
			if resp.Diagnostics.HasError() {
				t.Error(resp.Diagnostics)
			}
		})
	}
}

func TestAccessSurvivesTheWayThroughTerraform(t *testing.T) {
	for name, access := range map[string]kube.Access{
		"kubeconfig":        {Kubeconfig: []byte("apiVersion: v1"), Context: "admin", UID: "u1"},
		"kubeconfig path":   {KubeconfigPath: "/tmp/k"},
		"cluster name":      {ClusterName: "prod"},
		"ephemeral cluster": {Ephemeral: &kube.Ephemeral{Name: "e", Runtime: "local", Spec: []byte(`{"a":1}`)}, UID: "u2"},
	} {
		t.Run(name, func(t *testing.T) {
			got, known, diags := accessFrom(context.Background(), accessObject(access))
			if diags.HasError() || !known {
				t.Fatalf("known %v, diagnostics %v", known, diags)
			}
			if !reflect.DeepEqual(got, access) {
				t.Errorf("got %+v, want %+v", got, access)
			}
		})
	}
}

func TestAccessWithAnUnknownPartIsNotKnown(t *testing.T) {
	for name, object := range map[string]types.Object{
		"unknown object":            types.ObjectUnknown(accessTypes),
		"unknown kubeconfig":        testAccess(map[string]attr.Value{"kubeconfig": types.StringUnknown()}),
		"unknown context":           testAccess(map[string]attr.Value{"kubeconfig": text("k"), "context": types.StringUnknown()}),
		"unknown ephemeral cluster": testAccess(map[string]attr.Value{"ephemeral_cluster": types.ObjectUnknown(ephemeralAccessTypes)}),
		"unknown specification":     testAccess(map[string]attr.Value{"ephemeral_cluster": testEphemeral(text("e"), text("local"), types.StringUnknown())}),
	} {
		t.Run(name, func(t *testing.T) {
			if _, known, diags := accessFrom(context.Background(), object); known || diags.HasError() {
				t.Errorf("known %v, diagnostics %v, want not known and no error", known, diags)
			}
		})
	}
}

func TestAccessIsComparedByIdentity(t *testing.T) {
	kubeconfig := func(content string, uid attr.Value) types.Object {
		return testAccess(map[string]attr.Value{"kubeconfig": text(content), "uid": uid})
	}
	ephemeral := func(name, runtime, spec attr.Value) types.Object {
		return testAccess(map[string]attr.Value{"ephemeral_cluster": testEphemeral(name, runtime, spec)})
	}
	for name, test := range map[string]struct {
		before, after types.Object
		want          sameness
	}{
		"a rotated kubeconfig of the same uid is the same cluster": {kubeconfig("old", text("u")), kubeconfig("new", text("u")), sameCluster},
		"another uid is another cluster":                           {kubeconfig("old", text("u")), kubeconfig("old", text("v")), otherCluster},
		"a kubeconfig without a uid is undecided":                  {kubeconfig("old", types.StringNull()), kubeconfig("new", types.StringNull()), undecided},
		"an equal object is the same cluster":                      {kubeconfig("old", types.StringNull()), kubeconfig("old", types.StringNull()), sameCluster},
		"an unknown uid is undecided":                              {kubeconfig("old", text("u")), kubeconfig("new", types.StringUnknown()), undecided},
		"an unknown object is undecided":                           {kubeconfig("old", text("u")), types.ObjectUnknown(accessTypes), undecided},
		"two unknown objects are undecided":                        {types.ObjectUnknown(accessTypes), types.ObjectUnknown(accessTypes), undecided},
		"a changed specification is the same ephemeral cluster": {
			ephemeral(text("e"), text("local"), text("1")), ephemeral(text("e"), text("local"), text("2")), sameCluster},
		"an unknown specification is the same ephemeral cluster": {
			ephemeral(text("e"), text("local"), text("1")), ephemeral(text("e"), text("local"), types.StringUnknown()), sameCluster},
		"another name is another ephemeral cluster": {
			ephemeral(text("e"), text("local"), text("1")), ephemeral(text("f"), text("local"), text("1")), otherCluster},
		"another runtime is another ephemeral cluster": {
			ephemeral(text("e"), text("local"), text("1")), ephemeral(text("e"), text("kind"), text("1")), otherCluster},
		"an ephemeral cluster and a kubeconfig without a uid are undecided": {
			ephemeral(text("e"), text("local"), text("1")), kubeconfig("k", types.StringNull()), undecided},
	} {
		t.Run(name, func(t *testing.T) {
			if got := compareAccess(context.Background(), test.before, test.after); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
