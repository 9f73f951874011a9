// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// FieldManager is the name under which the provider owns fields of the objects
// that it applies.
const FieldManager = "terraform-provider-capi"

// requestTimeout ends a single request to a server that took the connection
// and never answers. It is clusterctl's own (client/cluster/proxy.go).
const requestTimeout = 30 * time.Second

// Client is an uncached client of one cluster. It knows Kubernetes' own types,
// CustomResourceDefinition and Cluster API's core types; everything else goes through it as
// unstructured objects. It learns new kinds as their definitions appear.
type Client struct {
	client.Client
	// Config is the configuration that the client was made from, for libraries
	// that make their own clients.
	Config *rest.Config
}

// NewClient makes a client. Nothing is dialled: the first request does it.
func NewClient(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(apiextensionsv1.AddToScheme(scheme))
	utilruntime.Must(clusterv1.AddToScheme(scheme))
	timed := rest.CopyConfig(config)
	if timed.Timeout == 0 {
		timed.Timeout = requestTimeout
	}
	made, err := client.New(timed, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", config.Host, err)
	}
	return &Client{Client: made, Config: config}, nil
}

// UID answers the cluster's identity: the UID of its namespace kube-system,
// which lives and dies with the cluster's data. Any error means "unknown".
func (c *Client) UID(ctx context.Context) (string, error) {
	namespace := &corev1.Namespace{}
	if err := c.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, namespace); err != nil {
		return "", fmt.Errorf("reading the identity of the cluster at %s (namespace kube-system): %w", c.Config.Host, err)
	}
	return string(namespace.UID), nil
}

// Object reads one object of any kind. [IsAbsent] holds for the error when the
// API server said that the object, or its kind, is not there.
func (c *Client) Object(ctx context.Context, apiVersion, kind, namespace, name string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object); err != nil {
		return nil, fmt.Errorf("reading %s: %w", describe(kind, namespace, name), Classify(err))
	}
	return object, nil
}

// List reads all objects of a kind in a namespace (empty: in all). A kind that
// is not there answers an error for which [IsAbsent] holds.
func (c *Client) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if err := c.Client.List(ctx, list, options...); err != nil {
		return fmt.Errorf("listing %s: %w", list.GetObjectKind().GroupVersionKind().Kind, Classify(err))
	}
	return nil
}

// Objects is [Client.List] for a kind without a Go type.
func (c *Client) Objects(ctx context.Context, apiVersion, kind, namespace string) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(apiVersion)
	list.SetKind(kind + "List")
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// endPatience is how long the end of a namespace is waited for that is being
// deleted: it takes seconds, unless a finalizer holds one of its objects.
const endPatience = 2 * time.Minute

// EnsureNamespace creates a namespace unless it is there. One that is being
// deleted takes no more objects: its end is waited for.
func (c *Client) EnsureNamespace(ctx context.Context, name string) error {
	there, _, err := c.makeNamespace(ctx, name)
	if there || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	return Wait(ctx, "the end of namespace "+name+", which is being deleted", func(ctx context.Context) (bool, string, error) {
		there, now, err := c.makeNamespace(ctx, name)
		if err != nil && !Transient(err) {
			err = Fatal(err)
		}
		return there, now, err
	})
}

// makeNamespace answers whether the namespace can be used, and else what keeps
// it from its end.
func (c *Client) makeNamespace(ctx context.Context, name string) (there bool, now string, err error) {
	namespace := &corev1.Namespace{}
	err = c.Get(ctx, client.ObjectKey{Name: name}, namespace)
	if err == nil {
		return namespace.DeletionTimestamp == nil, whatHolds(namespace), nil
	}
	// Who may not look may still be allowed to make it.
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		err = c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return false, "", fmt.Errorf("creating namespace %s: %w", name, err)
	}
	return true, "", nil
}

// NamespaceEnds says whether a namespace is being deleted, so that nothing can
// be created in it. Of one that is gone, or that nobody may look at, it says no.
func (c *Client) NamespaceEnds(ctx context.Context, name string) (bool, error) {
	namespace := &corev1.Namespace{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, namespace)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading namespace %s: %w", name, err)
	}
	return namespace.DeletionTimestamp != nil, nil
}

// whatHolds tells what keeps a namespace from its end, as its conditions have it.
func whatHolds(namespace *corev1.Namespace) string {
	for _, condition := range namespace.Status.Conditions {
		if condition.Status == corev1.ConditionTrue && condition.Message != "" {
			return condition.Message
		}
	}
	return ""
}

// Classify marks an API server's proof of absence, an object not found or a
// kind that it does not serve, with [ErrAbsent]. Every other error is handed
// back as it is.
func Classify(err error) error {
	if err == nil || errors.Is(err, ErrAbsent) {
		return err
	}
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	return err
}

func describe(kind, namespace, name string) string {
	if namespace == "" {
		return kind + " " + name
	}
	return kind + " " + namespace + "/" + name
}

// Describe names an object for people: its kind, namespace and name.
func Describe(object client.Object) string {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	return describe(kind, object.GetNamespace(), object.GetName())
}
