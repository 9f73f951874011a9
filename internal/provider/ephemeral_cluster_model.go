// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
)

// defaultKubernetesVersion is what an ephemeral cluster runs where the
// configuration says nothing else.
const defaultKubernetesVersion = "v1.36.2"

type ephemeralClusterModel struct {
	ID                types.String   `tfsdk:"id"`
	Name              types.String   `tfsdk:"name"`
	Runtime           types.String   `tfsdk:"runtime"`
	KubernetesVersion types.String   `tfsdk:"kubernetes_version"`
	Images            types.List     `tfsdk:"images"`
	Kind              types.Object   `tfsdk:"kind"`
	Repository        types.String   `tfsdk:"repository"`
	CertManager       types.Object   `tfsdk:"cert_manager"`
	Providers         types.Object   `tfsdk:"providers"`
	Access            types.Object   `tfsdk:"access"`
	Status            types.String   `tfsdk:"status"`
	Instance          types.String   `tfsdk:"instance"`
	Phase             types.String   `tfsdk:"phase"`
	Timeouts          timeouts.Value `tfsdk:"timeouts"`
}

// ephemeralClusterIdentity is the identity of the resource: a name on a machine.
type ephemeralClusterIdentity struct {
	Runtime types.String `tfsdk:"runtime"`
	Name    types.String `tfsdk:"name"`
}

func (m *ephemeralClusterModel) identity() ephemeralClusterIdentity {
	return ephemeralClusterIdentity{Runtime: m.Runtime, Name: m.Name}
}

func (m *ephemeralClusterModel) thing() string {
	return fmt.Sprintf("the ephemeral cluster %q (runtime %s)", m.Name.ValueString(), m.Runtime.ValueString())
}

// reference names the cluster, for calls that need no specification.
func (m *ephemeralClusterModel) reference() kube.Ephemeral {
	return kube.Ephemeral{Name: m.Name.ValueString(), Runtime: m.Runtime.ValueString()}
}

// spec reads the specification. known is false while part of it is not known.
func (m *ephemeralClusterModel) spec(ctx context.Context) (spec bootstrap.Spec, known bool, diags diag.Diagnostics) {
	for _, text := range []types.String{m.Name, m.Runtime, m.KubernetesVersion, m.Repository} {
		if text.IsUnknown() {
			return spec, false, nil
		}
	}
	providers, providersKnown, found := providersFrom(ctx, m.Providers)
	diags.Append(found...)
	certManager, certManagerKnown, found := certManagerFrom(ctx, m.CertManager)
	diags.Append(found...)
	images, imagesKnown := textList(m.Images)
	kind, kindKnown := m.kind()
	if diags.HasError() || !providersKnown || !certManagerKnown || !imagesKnown || !kindKnown {
		return spec, false, diags
	}
	return bootstrap.Spec{
		Name:              m.Name.ValueString(),
		Runtime:           m.Runtime.ValueString(),
		KubernetesVersion: m.KubernetesVersion.ValueString(),
		Images:            images,
		Kind:              kind,
		Repository:        m.Repository.ValueString(),
		CertManager:       certManager,
		Providers:         providers,
	}, true, diags
}

// checkRuntime judges whether the cluster can run here as configured.
func (m *ephemeralClusterModel) checkRuntime(goos, goarch string) (diags diag.Diagnostics) {
	wanted := m.Runtime.ValueString()
	switch {
	case m.Runtime.IsUnknown():
	case wanted != bootstrap.Kind && !m.Kind.IsNull():
		diags.AddAttributeError(path.Root("kind"), "Unable to use the settings of kind",
			"They are of runtime = \"kind\" alone, and the cluster has another one: leave them out, or change the runtime.")
	case (wanted == "" || wanted == bootstrap.Local) && !local.Supported(goos, goarch):
		diags.AddAttributeError(path.Root("runtime"), "Unable to run the ephemeral cluster here",
			fmt.Sprintf("The runtime local runs on Linux on amd64 and arm64, and this is %s on %s. Use runtime = \"kind\", which needs a container engine.", goos, goarch))
	}
	return diags
}

// kind reads the settings of the runtime kind. known is false while part of them
// is not known.
func (m *ephemeralClusterModel) kind() (options bootstrap.KindOptions, known bool) {
	if m.Kind.IsUnknown() {
		return options, false
	}
	for name, into := range map[string]*string{"engine": &options.Engine, "node_image": &options.NodeImage, "config": &options.Config} {
		value, _ := m.Kind.Attributes()[name].(types.String)
		if value.IsUnknown() {
			return options, false
		}
		*into = value.ValueString()
	}
	return options, true
}

// textList reads a list of texts. known is false while part of it is not known.
func textList(values types.List) (texts []string, known bool) {
	if values.IsUnknown() {
		return nil, false
	}
	for _, element := range values.Elements() {
		text, ok := element.(types.String)
		if !ok || text.IsUnknown() {
			return nil, false
		}
		texts = append(texts, text.ValueString())
	}
	return texts, true
}

// accessOf writes the access object of a specification. It has no uid: that
// changes when the cluster is made again, and by its name it stays the same.
func accessOf(spec bootstrap.Spec) (types.Object, error) {
	ephemeral, err := spec.Ephemeral()
	if err != nil {
		return types.ObjectNull(accessTypes), err
	}
	return accessObject(kube.Access{Ephemeral: ephemeral}), nil
}
