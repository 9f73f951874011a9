// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// ProxmoxCredentials are what CAPMOX logs in to Proxmox VE with.
type ProxmoxCredentials struct {
	// URL is the API's address: https://pve.example:8006.
	URL string
	// Token is the token's id with its user: capi@pve!capi-token.
	Token string
	// Secret is the token's secret.
	Secret string
	// Insecure turns off the check of the API's certificate.
	Insecure bool
	// CA is the PEM of the authority that signed the API's certificate; empty
	// means those of the manager's image.
	CA string
}

// Names of what CAPMOX's components hold (cluster-api-provider-proxmox v0.9.0,
// config/manager, config/default, cmd/main.go). The name prefix capmox- is the
// project's.
const (
	capmoxDeployment  = "capmox-controller-manager"
	capmoxContainer   = "manager"
	capmoxCAConfigMap = "capmox-proxmox-ca"
	capmoxCAVolume    = "proxmox-ca"
	capmoxCAFolder    = "/etc/proxmox-ca"
	capmoxCAFile      = "ca.crt"
	// shortestSecret keeps words such as "true" readable in errors.
	shortestSecret     = 6
	credentialsHashKey = "terraform-provider-capi/credentials-hash"
)

// variables answers the variables of the provider's components, the
// credentials' ones included. CAPMOX reads no other place for them.
func (p Provider) variables() map[string]string {
	merged := map[string]string{}
	maps.Copy(merged, p.Variables)
	if c := p.Credentials; c != nil {
		merged["PROXMOX_URL"] = c.URL
		merged["PROXMOX_TOKEN"] = c.Token
		merged["PROXMOX_SECRET"] = c.Secret
	}
	return merged
}

// variablesHash tells one set of variables from another without giving it
// away: the set holds at least one random secret wherever it holds any.
func (p Provider) variablesHash() string {
	sum := sha256.New()
	variables := p.variables()
	for _, key := range slices.Sorted(maps.Keys(variables)) {
		_, _ = fmt.Fprintf(sum, "%q=%q\n", key, variables[key])
	}
	if p.Credentials != nil {
		_, _ = fmt.Fprintf(sum, "%t %q\n", p.Credentials.Insecure, p.Credentials.CA)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// settingsHash tells one set of all that changes a provider's components from
// another, without giving variables away.
func (p Provider) settingsHash() string {
	if p.Availability == nil {
		return p.variablesHash()
	}
	sum := sha256.Sum256([]byte(p.variablesHash() + p.Availability.text()))
	return hex.EncodeToString(sum[:])[:16]
}

// deploymentPatch is the strategic merge patch that makes CAPMOX check the
// API's certificate: its components have no variable for that, and a manager
// that is told nothing checks none. The hash restarts the pod when the
// credentials change, which a changed Secret alone does not.
func (p Provider) deploymentPatch() map[string]any {
	env := []any{map[string]any{"name": "PROXMOX_INSECURE", "value": strconv.FormatBool(p.Credentials.Insecure)}}
	container := map[string]any{"name": capmoxContainer}
	pod := map[string]any{"containers": []any{container}}
	if p.Credentials.CA != "" {
		// Go's crypto/x509 reads every file of this folder besides the image's
		// own bundle. The manager's flag for it would mean to replace its
		// arguments, which a patch cannot add to.
		env = append(env, map[string]any{"name": "SSL_CERT_DIR", "value": capmoxCAFolder})
		container["volumeMounts"] = []any{map[string]any{"name": capmoxCAVolume, "mountPath": capmoxCAFolder, "readOnly": true}}
		pod["volumes"] = []any{map[string]any{"name": capmoxCAVolume, "configMap": map[string]any{"name": capmoxCAConfigMap}}}
	}
	container["env"] = env
	return map[string]any{
		"apiVersion": "apps/v1",
		"kind":       "Deployment",
		"metadata":   map[string]any{"name": capmoxDeployment},
		"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{credentialsHashKey: p.variablesHash()}},
			"spec":     pod,
		}},
	}
}

// caConfigMap holds the authority that the manager is to trust, in the
// namespace that CAPMOX runs in.
func (p Provider) caConfigMap(namespace string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata":   map[string]any{"name": capmoxCAConfigMap, "namespace": namespace},
		"data":       map[string]any{capmoxCAFile: p.Credentials.CA},
	}}
}

// withCredentials changes CAPMOX's components as its credentials ask.
func (p Provider) withCredentials(objects []unstructured.Unstructured) ([]unstructured.Unstructured, error) {
	if p.Credentials == nil {
		return objects, nil
	}
	namespace := ""
	for i := range objects {
		if objects[i].GetKind() != "Deployment" || objects[i].GetName() != capmoxDeployment {
			continue
		}
		namespace = objects[i].GetNamespace()
		patched, err := strategicpatch.StrategicMergeMapPatch(objects[i].Object, p.deploymentPatch(), appsv1.Deployment{})
		if err != nil {
			return nil, fmt.Errorf("setting the credentials of Deployment %s: %w", capmoxDeployment, err)
		}
		objects[i].Object = patched
	}
	if namespace == "" {
		return nil, fmt.Errorf("the components of %s hold no Deployment %s, so its credentials cannot be set: this version of it is not known", p, capmoxDeployment)
	}
	if p.Credentials.CA != "" {
		objects = append(objects, *p.caConfigMap(namespace))
	}
	return objects, nil
}

// withSettings changes a provider's components as its credentials and its
// availability ask.
func (p Provider) withSettings(objects []unstructured.Unstructured) ([]unstructured.Unstructured, error) {
	objects, err := p.withCredentials(objects)
	if err != nil || p.Availability == nil {
		return objects, err
	}
	return p.Availability.apply(objects)
}

// redact takes the values of the variables out of an error: clusterctl quotes
// the whole document that it cannot read, after it has filled them in.
func (p Provider) redact(err error) error {
	text := err.Error()
	for key, value := range p.variables() {
		if len(value) < shortestSecret {
			continue
		}
		quoted := strings.Trim(strconv.Quote(value), `"`)
		text = strings.NewReplacer(value, "${"+key+"}", quoted, "${"+key+"}").Replace(text)
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}
