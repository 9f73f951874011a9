// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pivot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A source whose controllers are gone may still have their webhooks' configurations.
// Its API server then refuses every write of the objects, since nobody answers: a
// move could neither pause nor remove them. Such a webhook is silenced for the time
// of the move by a selector that no object meets; its configuration stays, and
// whatever ends the move takes the selector away again.

// silenceLabel is what a silenced webhook asks of an object. It also tells which
// webhooks are silenced, so that none is left so.
const silenceLabel = labelPrefix + "silenced-while-moving"

// silenceRounds is how often it is looked for further webhooks that do not answer: the
// API server tells of one at a time.
const silenceRounds = 5

// hook is a webhook of the source without whose answer the API server refuses a
// write.
type hook struct {
	// Configuration is the kind of its configuration, Name the configuration's and
	// Webhook its own.
	Configuration string `json:"configuration"`
	Name          string `json:"name"`
	Webhook       string `json:"webhook"`

	backend  string
	silenced bool
}

func (h hook) String() string { return h.Webhook + " (" + h.Configuration + " " + h.Name + ")" }

// same says whether two are the same, whatever is known of them beside.
func (h hook) same(other hook) bool {
	return h.Configuration == other.Configuration && h.Name == other.Name && h.Webhook == other.Webhook
}

const (
	validatingKind = "ValidatingWebhookConfiguration"
	mutatingKind   = "MutatingWebhookConfiguration"
)

// hooks lists the webhooks of the source that writes of the groups' objects depend
// on; none when they may not be listed.
func (s *Side) hooks(ctx context.Context, groups []string) ([]hook, error) {
	validating, mutating := &admissionv1.ValidatingWebhookConfigurationList{}, &admissionv1.MutatingWebhookConfigurationList{}
	for _, list := range []client.ObjectList{validating, mutating} {
		err := s.read(ctx, func() error { return s.Client.List(ctx, list) })
		if err != nil && !apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("listing the webhooks of %s: %w", s.Name, err)
		}
	}
	var found []hook
	add := func(kind, configuration, webhook string, config admissionv1.WebhookClientConfig, selector *metav1.LabelSelector, policy *admissionv1.FailurePolicyType, rules []admissionv1.RuleWithOperations) {
		h := hook{Configuration: kind, Name: configuration, Webhook: webhook, backend: backendOf(config)}
		if selector != nil {
			_, h.silenced = selector.MatchLabels[silenceLabel]
		}
		strict := ptr.Deref(policy, admissionv1.Fail) == admissionv1.Fail
		if h.silenced || strict && slices.ContainsFunc(rules, func(rule admissionv1.RuleWithOperations) bool { return concerns(rule, groups) }) {
			found = append(found, h)
		}
	}
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			add(validatingKind, c.Name, w.Name, w.ClientConfig, w.ObjectSelector, w.FailurePolicy, w.Rules)
		}
	}
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			add(mutatingKind, c.Name, w.Name, w.ClientConfig, w.ObjectSelector, w.FailurePolicy, w.Rules)
		}
	}
	return found, nil
}

// concerns says whether a rule covers what a move does to the groups' objects on the
// source.
func concerns(rule admissionv1.RuleWithOperations, groups []string) bool {
	operations := []admissionv1.OperationType{admissionv1.Update, admissionv1.Delete, admissionv1.OperationAll}
	return slices.ContainsFunc(rule.Operations, func(o admissionv1.OperationType) bool { return slices.Contains(operations, o) }) &&
		slices.ContainsFunc(rule.APIGroups, func(group string) bool { return group == "*" || slices.Contains(groups, group) })
}

// backendOf names who answers a webhook.
func backendOf(config admissionv1.WebhookClientConfig) string {
	if config.Service != nil {
		return config.Service.Namespace + "/" + config.Service.Name
	}
	address := ptr.Deref(config.URL, "")
	if end := strings.IndexAny(strings.TrimPrefix(address, "https://"), "/?"); end >= 0 {
		address = address[:len("https://")+end]
	}
	return address
}

// noAnswer is how an API server tells that a webhook did not answer.
var noAnswer = regexp.MustCompile(`failed calling webhook "([^"]+)"`)

// deadHooks finds webhooks of the source that nobody answers, by sending a write of
// each kind that stores nothing. With one all of the same backend are dead.
func (r *run) deadHooks(ctx context.Context) ([]hook, error) {
	entries := r.sourceEntries()
	groups := []string{}
	for _, e := range entries {
		groups = append(groups, e.Group)
	}
	hooks, err := r.source.hooks(ctx, groups)
	if err != nil {
		return nil, err
	}
	if hooks = slices.DeleteFunc(hooks, func(h hook) bool { return h.silenced }); len(hooks) == 0 {
		return nil, nil
	}
	names, err := r.unanswered(ctx, entries)
	if err != nil {
		return nil, err
	}
	var backends []string
	for _, h := range hooks {
		if slices.Contains(names, h.Webhook) {
			backends = append(backends, h.backend)
		}
	}
	return slices.DeleteFunc(hooks, func(h hook) bool { return !slices.Contains(backends, h.backend) }), nil
}

// sourceEntries are the objects that the move writes to on the source.
func (r *run) sourceEntries() []entry {
	var all []entry
	if r.journal != nil {
		all = r.journal.entries
	} else {
		for _, n := range r.graph.placed() {
			all = append(all, n.entry(false))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(e entry) bool { return e.Keep })
}

// unanswered answers the names of webhooks that did not answer when one object of
// each kind was written.
func (r *run) unanswered(ctx context.Context, entries []entry) ([]string, error) {
	there, err := heldUIDs(ctx, r.source, gvksOf(entries))
	if err != nil {
		return nil, err
	}
	samples := map[schema.GroupVersionKind]entry{}
	for _, e := range entries {
		if _, ok := there[e.id()]; ok {
			samples[e.gvk()] = e
		}
	}
	var mu sync.Mutex
	var names []string
	err = each(ctx, r.parallel(), slices.Collect(maps.Values(samples)), func(ctx context.Context, e entry) error {
		err := r.source.read(ctx, func() error {
			return r.source.Client.Patch(ctx, metadataOf(e), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, release, there[e.id()])), client.DryRunAll, client.FieldOwner(fieldManager))
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// Any other error is the matter of the write that is meant.
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			for _, match := range noAnswer.FindAllStringSubmatch(err.Error(), -1) {
				names = append(names, match[1])
			}
		}
		return nil
	})
	return names, err
}

// silence opens the way for the writes to the source. Which webhooks it silences is
// in the journal first.
func (r *run) silence(ctx context.Context) error {
	if r.source == nil || r.open {
		return nil
	}
	for range silenceRounds {
		dead := r.dead
		if r.dead = nil; len(dead) == 0 {
			var err error
			if dead, err = r.deadHooks(ctx); err != nil {
				return err
			}
		}
		if len(dead) == 0 {
			r.open = true
			return nil
		}
		r.opts.Report.Report(ctx, "silencing", fmt.Sprintf("nobody answers %d webhooks of the source (%s); they are not asked until the move has ended", len(dead), dead[0]))
		for _, h := range dead {
			if !slices.ContainsFunc(r.journal.Silenced, h.same) {
				r.journal.Silenced = append(r.journal.Silenced, h)
			}
		}
		if err := r.journal.save(ctx, r.journal.Phase, r.source); err != nil {
			return err
		}
		if err := r.setSilence(ctx, dead, true); err != nil {
			return err
		}
	}
	return fmt.Errorf("the webhooks of %s that nobody answers come back each time: suspend what applies their configurations and apply again", r.source.Name)
}

// unsilence lets the webhooks be asked again.
func (r *run) unsilence(ctx context.Context) error {
	if r.source == nil {
		return nil
	}
	return r.setSilence(ctx, r.journal.Silenced, false)
}

// unsilenceLeft lets webhooks be asked again that a lost run's last request silenced
// after the next run had ended.
func (r *run) unsilenceLeft(ctx context.Context) error {
	hooks, err := r.source.hooks(ctx, nil)
	if err != nil {
		return err
	}
	return r.setSilence(ctx, slices.DeleteFunc(hooks, func(h hook) bool { return !h.silenced }), false)
}

// setSilence changes the selectors of webhooks, one configuration after the other.
func (r *run) setSilence(ctx context.Context, hooks []hook, on bool) error {
	byConfiguration := func(a, b hook) int {
		return cmp.Or(strings.Compare(a.Configuration, b.Configuration), strings.Compare(a.Name, b.Name))
	}
	hooks = slices.SortedStableFunc(slices.Values(hooks), byConfiguration)
	var failed []error
	for len(hooks) > 0 {
		end := 1
		for end < len(hooks) && byConfiguration(hooks[0], hooks[end]) == 0 {
			end++
		}
		part := hooks[:end]
		hooks = hooks[end:]
		if err := r.source.write(ctx, func() error { return r.setSilenceOnce(ctx, part, on) }); err != nil {
			failed = append(failed, fmt.Errorf("setting whether the webhooks of %s %s on %s are asked: %w", part[0].Configuration, part[0].Name, r.source.Name, err))
		}
	}
	return errors.Join(failed...)
}

func (r *run) setSilenceOnce(ctx context.Context, hooks []hook, on bool) error {
	// As it is stored, so that no field is lost which this program does not know.
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind(hooks[0].Configuration))
	if err := r.source.Client.Get(ctx, client.ObjectKey{Name: hooks[0].Name}, o); err != nil {
		return client.IgnoreNotFound(err)
	}
	all, _, err := unstructured.NestedSlice(o.Object, "webhooks")
	if err != nil {
		return err
	}
	changed := false
	for _, item := range all {
		fields, _ := item.(map[string]any)
		name, _ := fields["name"].(string)
		if slices.ContainsFunc(hooks, func(h hook) bool { return h.Webhook == name }) {
			changed = setSelector(fields, on) || changed
		}
	}
	if !changed {
		return nil
	}
	if err := unstructured.SetNestedSlice(o.Object, all, "webhooks"); err != nil {
		return err
	}
	err = r.source.Client.Update(ctx, o, client.FieldOwner(fieldManager))
	if apierrors.IsConflict(err) {
		return retryable{err}
	}
	return err
}

// setSelector answers whether it changed something.
func setSelector(webhook map[string]any, on bool) bool {
	labels, _, _ := unstructured.NestedStringMap(webhook, "objectSelector", "matchLabels")
	if _, silenced := labels[silenceLabel]; silenced == on {
		return false
	}
	if on {
		_ = unstructured.SetNestedField(webhook, "true", "objectSelector", "matchLabels", silenceLabel)
		return true
	}
	unstructured.RemoveNestedField(webhook, "objectSelector", "matchLabels", silenceLabel)
	if len(labels) == 1 {
		unstructured.RemoveNestedField(webhook, "objectSelector", "matchLabels")
	}
	return true
}
