// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package capi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/kube"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

const probeName = "terraform-provider-capi-probe"

// WaitReady waits until the providers with the given labels work: their
// Deployments are rolled out and available, the certificates of their webhooks
// are in place, and each kind's webhooks answer a create that is only tried
// (dry run). Without a deadline in ctx it gives up after 15 minutes. The error
// says what each Deployment and pod was waiting for.
func WaitReady(ctx context.Context, restConfig *rest.Config, labels []string, report progress.Reporter) error {
	reader, err := (&proxy{config: restConfig}).NewClient(ctx)
	if err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultTimeout)
		defer cancel()
	}
	report.Report(ctx, "waiting-for-providers", "waiting for the controllers of "+strings.Join(labels, ", "))
	for _, label := range labels {
		selector := client.MatchingLabels{clusterv1.ProviderNameLabel: label}
		if err := waitAvailable(ctx, reader, label, selector); err != nil {
			return err
		}
		if err := waitWebhooks(ctx, reader, label, selector); err != nil {
			return err
		}
	}
	return nil
}

func waitAvailable(ctx context.Context, reader client.Client, what string, selector client.ListOption) error {
	namespaces := map[string]bool{}
	err := kube.Wait(ctx, "the Deployments of "+what, func(ctx context.Context) (bool, string, error) {
		list := &appsv1.DeploymentList{}
		if err := reader.List(ctx, list, selector); err != nil {
			return false, "", err
		}
		var late []string
		for i := range list.Items {
			namespaces[list.Items[i].Namespace] = true
			if state := unavailable(&list.Items[i]); state != "" {
				late = append(late, state)
			}
		}
		if len(list.Items) == 0 {
			return false, "there is none", nil
		}
		return len(late) == 0, strings.Join(late, "; "), nil
	})
	if err == nil {
		return nil
	}
	for namespace := range namespaces {
		err = fmt.Errorf("%w%s", err, describeNamespace(context.WithoutCancel(ctx), reader, namespace))
	}
	return err
}

// unavailable says what a Deployment lacks; empty means nothing.
func unavailable(d *appsv1.Deployment) string {
	wanted := int32(1)
	if d.Spec.Replicas != nil {
		wanted = *d.Spec.Replicas
	}
	available := false
	for _, condition := range d.Status.Conditions {
		available = available || (condition.Type == appsv1.DeploymentAvailable && condition.Status == corev1.ConditionTrue)
	}
	current := d.Status.ObservedGeneration >= d.Generation && d.Status.UpdatedReplicas >= wanted && d.Status.Replicas == d.Status.UpdatedReplicas
	if available && current && d.Status.AvailableReplicas >= wanted {
		return ""
	}
	return fmt.Sprintf("%s/%s: %d of %d pods available, %d up to date", d.Namespace, d.Name, d.Status.AvailableReplicas, wanted, d.Status.UpdatedReplicas)
}

// describeNamespace says, a line each, what the pods of a namespace that do not
// run are waiting for. It goes into errors and is empty where nothing is known.
func describeNamespace(ctx context.Context, reader client.Client, namespace string) string {
	pods := &corev1.PodList{}
	if err := reader.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		return ""
	}
	var text strings.Builder
	for i := range pods.Items {
		if reason := waitingFor(&pods.Items[i]); reason != "" {
			_, _ = fmt.Fprintf(&text, "\n  pod %s/%s: %s", namespace, pods.Items[i].Name, reason)
		}
	}
	return text.String()
}

func waitingFor(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return "not scheduled: " + condition.Message
		}
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		waiting, last := status.State.Waiting, status.LastTerminationState.Terminated
		switch {
		case waiting != nil && last != nil:
			return fmt.Sprintf("container %s: %s, after exit code %d: %s", status.Name, waiting.Reason, last.ExitCode, last.Message)
		case waiting != nil:
			return fmt.Sprintf("container %s: %s %s", status.Name, waiting.Reason, waiting.Message)
		case !status.Ready && status.State.Running != nil:
			return fmt.Sprintf("container %s runs and is not ready", status.Name)
		}
	}
	if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodSucceeded {
		return string(pod.Status.Phase)
	}
	return ""
}

// waitWebhooks waits until nothing that a selector finds keeps the API server
// from calling a webhook.
func waitWebhooks(ctx context.Context, reader client.Client, what string, selector client.ListOption) error {
	return kube.Wait(ctx, "the webhooks of "+what, func(ctx context.Context) (bool, string, error) {
		err := webhooksAnswer(ctx, reader, selector)
		return err == nil, "", err
	})
}

func webhooksAnswer(ctx context.Context, reader client.Client, selector client.ListOption) error {
	if err := conversionsReady(ctx, reader, selector); err != nil {
		return err
	}
	resources, err := admissionResources(ctx, reader, selector)
	if err != nil {
		return err
	}
	for _, resource := range resources {
		if err := probe(ctx, reader, resource); err != nil {
			return err
		}
	}
	return nil
}

func conversionsReady(ctx context.Context, reader client.Client, selector client.ListOption) error {
	definitions := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := reader.List(ctx, definitions, selector); err != nil {
		return fmt.Errorf("listing CustomResourceDefinitions: %w", err)
	}
	for i := range definitions.Items {
		conversion := definitions.Items[i].Spec.Conversion
		if conversion == nil || conversion.Webhook == nil || conversion.Webhook.ClientConfig == nil {
			continue
		}
		// A kind of one version is never converted, and nobody need give its
		// webhook an authority: the prefix pools of the in-cluster IPAM provider
		// v1.1.0 have none.
		if len(definitions.Items[i].Spec.Versions) < 2 {
			continue
		}
		if len(conversion.Webhook.ClientConfig.CABundle) == 0 {
			return fmt.Errorf("the conversion webhook of %s has no certificate authority yet", definitions.Items[i].Name)
		}
	}
	return nil
}

// admissionResources lists the resources whose creation the webhooks look at.
func admissionResources(ctx context.Context, reader client.Client, selector client.ListOption) ([]schema.GroupVersionResource, error) {
	validating, mutating := &admissionv1.ValidatingWebhookConfigurationList{}, &admissionv1.MutatingWebhookConfigurationList{}
	if err := errors.Join(reader.List(ctx, validating, selector), reader.List(ctx, mutating, selector)); err != nil {
		return nil, fmt.Errorf("listing webhook configurations: %w", err)
	}
	found := map[schema.GroupVersionResource]bool{}
	add := func(name string, config admissionv1.WebhookClientConfig, rules []admissionv1.RuleWithOperations) error {
		if config.Service != nil && len(config.CABundle) == 0 {
			return fmt.Errorf("webhook %s has no certificate authority yet", name)
		}
		for _, rule := range rules {
			collect(rule, found)
		}
		return nil
	}
	for _, item := range validating.Items {
		for _, hook := range item.Webhooks {
			if err := add(hook.Name, hook.ClientConfig, hook.Rules); err != nil {
				return nil, err
			}
		}
	}
	for _, item := range mutating.Items {
		for _, hook := range item.Webhooks {
			if err := add(hook.Name, hook.ClientConfig, hook.Rules); err != nil {
				return nil, err
			}
		}
	}
	resources := make([]schema.GroupVersionResource, 0, len(found))
	for resource := range found {
		resources = append(resources, resource)
	}
	return resources, nil
}

func collect(rule admissionv1.RuleWithOperations, found map[schema.GroupVersionResource]bool) {
	if !slices.Contains(rule.Operations, admissionv1.Create) && !slices.Contains(rule.Operations, admissionv1.OperationAll) {
		return
	}
	for _, group := range rule.APIGroups {
		for _, version := range rule.APIVersions {
			for _, resource := range rule.Resources {
				if strings.ContainsAny(group+version+resource, "*/") {
					continue
				}
				found[schema.GroupVersionResource{Group: group, Version: version, Resource: resource}] = true
			}
		}
	}
}

// probe tries to create an empty object. Whatever the webhook or the schema say
// against it, they have answered; only a call that did not come through counts.
func probe(ctx context.Context, reader client.Client, resource schema.GroupVersionResource) error {
	kind, err := reader.RESTMapper().KindFor(resource)
	if meta.IsNoMatchError(err) {
		// The rule is for a version or kind that this cluster does not serve.
		return nil
	}
	if err != nil {
		return fmt.Errorf("finding the kind of %s: %w", resource, err)
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	object.SetName(probeName)
	mapping, err := reader.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return fmt.Errorf("finding the resource of %s: %w", kind, err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		object.SetNamespace(metav1.NamespaceDefault)
	}
	err = reader.Create(ctx, object, client.DryRunAll)
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonForbidden, metav1.StatusReasonAlreadyExists:
		return nil
	}
	// A webhook that was reached and failed over the empty object has answered
	// as well: that of CAPMOX v0.9.0 for ProxmoxMachine meets a nil pointer, which
	// controller-runtime turns into a refusal of status 500. A webhook that was
	// not reached is told as "failed calling webhook".
	if err != nil && !strings.Contains(err.Error(), "denied the request") {
		return fmt.Errorf("trying to create a %s: %w", kind.Kind, err)
	}
	return nil
}
