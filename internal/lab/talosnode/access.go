// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package talosnode

import (
	"bytes"
	"context"
	stdx509 "crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
)

// Talos API access for Kubernetes: objects talos.dev/v1alpha1 ServiceAccount in
// allowed namespaces become Secrets with a talosconfig of the allowed roles, and
// the Service default/talos leads to the Talos API of the control plane nodes.
// It does what Talos's kubeaccess controllers do
// (internal/app/machined/pkg/controllers/kubeaccess), lifetimes included.

const (
	accountTTL      = 6 * time.Hour
	accountRenewal  = time.Hour
	accountResync   = time.Minute
	accountContext  = "default"
	accountEndpoint = constants.KubernetesTalosAPIServiceName + "." + constants.KubernetesTalosAPIServiceNamespace
)

var (
	accountGVK = schema.GroupVersionKind{
		Group: constants.ServiceAccountResourceGroup, Version: constants.ServiceAccountResourceVersion, Kind: constants.ServiceAccountResourceKind,
	}
	accountGVR = accountGVK.GroupVersion().WithResource(constants.ServiceAccountResourcePlural)
)

// kubernetesAccess is the feature's configuration, or nil when it is off.
func (n *node) kubernetesAccess() config.KubernetesTalosAPIAccess {
	if !n.isControlPlane() {
		return nil
	}
	if a := n.cfg.Machine().Features().KubernetesTalosAPIAccess(); a != nil && a.Enabled() {
		return a
	}
	return nil
}

// runKubernetesAccess serves the feature until ctx ends.
func (n *node) runKubernetesAccess(ctx context.Context) {
	restConfig, err := n.adminConfig()
	if err != nil {
		n.logf("Talos API access for Kubernetes: %v", err)
		return
	}
	a, err := newAccountController(n, restConfig)
	if err != nil {
		n.logf("Talos API access for Kubernetes: %v", err)
		return
	}
	err = poll(ctx, time.Second, func(ctx context.Context) (bool, error) {
		err := a.ensureService(ctx)
		return err == nil, err
	})
	if err != nil {
		return // the node stops
	}
	a.run(ctx)
}

// accountController turns service accounts into Secrets.
type accountController struct {
	node     *node
	access   config.KubernetesTalosAPIAccess
	kube     kubernetes.Interface
	dynamic  dynamic.Interface
	queue    workqueue.TypedRateLimitingInterface[cache.ObjectName]
	informer cache.SharedIndexInformer
	factory  dynamicinformer.DynamicSharedInformerFactory
}

func newAccountController(n *node, restConfig *rest.Config) (*accountController, error) {
	client, err := rest.HTTPClientFor(restConfig)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	a := &accountController{node: n, access: n.kubernetesAccess()}
	if a.kube, err = kubernetes.NewForConfigAndClient(restConfig, client); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	if a.dynamic, err = dynamic.NewForConfigAndClient(restConfig, client); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	a.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]())
	a.factory = dynamicinformer.NewDynamicSharedInformerFactory(a.dynamic, accountResync)
	a.informer = a.factory.ForResource(accountGVR).Informer()
	enqueue := func(obj any) {
		if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			a.queue.Add(name)
		}
	}
	_, err = a.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }, DeleteFunc: enqueue,
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", accountGVR.GroupResource(), err)
	}
	return a, nil
}

func (a *accountController) run(ctx context.Context) {
	a.factory.Start(ctx.Done())
	defer a.factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), a.informer.HasSynced) {
		return
	}
	stop := context.AfterFunc(ctx, a.queue.ShutDown)
	defer stop()
	for {
		name, down := a.queue.Get()
		if down {
			return
		}
		if err := a.sync(ctx, name); err != nil && ctx.Err() == nil {
			a.node.logf("Talos service account %s: %v", name, err)
			a.queue.AddRateLimited(name)
		} else {
			a.queue.Forget(name)
		}
		a.queue.Done(name)
	}
}

// sync makes the Secret of one service account, or says in the account's status
// why there is none. A Secret goes with its account by garbage collection.
func (a *accountController) sync(ctx context.Context, name cache.ObjectName) error {
	obj, ok, err := a.informer.GetIndexer().GetByKey(name.String())
	if err != nil || !ok {
		return err
	}
	account := obj.(*unstructured.Unstructured)
	roles, found, err := unstructured.NestedStringSlice(account.Object, "spec", "roles")
	if err != nil || !found {
		return errors.Join(errors.New("no roles found"), err, a.setStatus(ctx, account, "Roles not found"))
	}
	if !slices.Contains(a.access.AllowedKubernetesNamespaces(), name.Namespace) {
		return a.setStatus(ctx, account, fmt.Sprintf("Namespace is not allowed: %s", name.Namespace))
	}
	refused := slices.DeleteFunc(slices.Clone(roles), func(r string) bool { return slices.Contains(a.access.AllowedRoles(), r) })
	if len(refused) > 0 {
		return a.setStatus(ctx, account, fmt.Sprintf("Roles not allowed: %v", refused))
	}
	set, _ := role.Parse(roles)
	if err := a.ensureSecret(ctx, account, set); err != nil {
		return err
	}
	return a.setStatus(ctx, account, "")
}

func (a *accountController) ensureSecret(ctx context.Context, account *unstructured.Unstructured, roles role.Set) error {
	client := a.kube.CoreV1().Secrets(account.GetNamespace())
	secret, err := client.Get(ctx, account.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		content, err := a.talosconfig(roles)
		if err != nil {
			return err
		}
		_, err = client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: account.GetName(), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(account, accountGVK)}},
			Data:       map[string][]byte{constants.TalosconfigFilename: content},
		}, metav1.CreateOptions{})
		return ignoreExists(err)
	case err != nil:
		return err
	case !metav1.IsControlledBy(secret, account):
		text := fmt.Sprintf("Secret already exists and is not managed by controller: %s/%s", account.GetNamespace(), account.GetName())
		return errors.Join(errors.New(text), a.setStatus(ctx, account, text))
	case a.upToDate(secret.Data[constants.TalosconfigFilename], roles):
		return nil
	}
	content, err := a.talosconfig(roles)
	if err != nil {
		return err
	}
	secret.Data = map[string][]byte{constants.TalosconfigFilename: content}
	_, err = client.Update(ctx, secret, metav1.UpdateOptions{})
	return err
}

func (a *accountController) talosconfig(roles role.Set) ([]byte, error) {
	ca := a.node.cfg.Machine().Security().IssuingCA()
	cert, err := secrets.NewAdminCertificateAndKey(time.Now(), ca, roles, accountTTL)
	if err != nil {
		return nil, fmt.Errorf("sign a client certificate: %w", err)
	}
	return clientconfig.NewConfig(accountContext, []string{accountEndpoint}, ca.Crt, cert).Bytes()
}

// upToDate says whether a talosconfig is of this CA, for these roles and valid
// for a while.
func (a *accountController) upToDate(content []byte, roles role.Set) bool {
	parsed, err := clientconfig.FromBytes(content)
	if err != nil {
		return false
	}
	c, ok := parsed.Contexts[parsed.Context]
	if !ok || !slices.Equal(c.Endpoints, []string{accountEndpoint}) {
		return false
	}
	ca, err := base64.StdEncoding.DecodeString(c.CA)
	if err != nil || !bytes.Equal(ca, a.node.cfg.Machine().Security().IssuingCA().Crt) {
		return false
	}
	crt, err := base64.StdEncoding.DecodeString(c.Crt)
	if err != nil {
		return false
	}
	block, _ := pem.Decode(crt)
	if block == nil {
		return false
	}
	cert, err := stdx509.ParseCertificate(block.Bytes)
	if err != nil || time.Now().Add(accountRenewal).After(cert.NotAfter) {
		return false
	}
	return slices.Equal(slices.Sorted(slices.Values(cert.Subject.Organization)), slices.Sorted(slices.Values(roles.Strings())))
}

// setStatus writes why an account has no Secret; "" means that it has one.
func (a *accountController) setStatus(ctx context.Context, account *unstructured.Unstructured, reason string) error {
	old, _, _ := unstructured.NestedString(account.Object, "status", "failureReason")
	if old == reason {
		return nil
	}
	changed := account.DeepCopy()
	if reason == "" {
		unstructured.RemoveNestedField(changed.Object, "status", "failureReason")
	} else if err := unstructured.SetNestedField(changed.Object, reason, "status", "failureReason"); err != nil {
		return err
	}
	_, err := a.dynamic.Resource(accountGVR).Namespace(account.GetNamespace()).Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// ensureService publishes the control plane nodes' Talos API as Service
// default/talos. EndpointSlices refuse loopback addresses, which a lab's nodes
// have: those appear under an alias that the pods' relay knows.
func (a *accountController) ensureService(ctx context.Context) error {
	labels := map[string]string{"provider": constants.KubernetesTalosProvider, "component": "apid"}
	_, err := a.kube.CoreV1().Services(constants.KubernetesTalosAPIServiceNamespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: constants.KubernetesTalosAPIServiceName, Labels: labels},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "apid", Port: constants.ApidPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(constants.ApidPort)},
		}},
	}, metav1.CreateOptions{})
	if ignoreExists(err) != nil {
		return fmt.Errorf("create Service default/talos: %w", err)
	}
	f := a.node.booter.fabric
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: constants.KubernetesTalosAPIServiceName + "-ipv4", Labels: map[string]string{
			discoveryv1.LabelServiceName: constants.KubernetesTalosAPIServiceName, "provider": labels["provider"], "component": labels["component"],
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("apid"), Port: new(int32(constants.ApidPort)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, m := range f.controlPlane(a.node) {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{f.apiAlias(m.address()).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		})
	}
	client := a.kube.DiscoveryV1().EndpointSlices(constants.KubernetesTalosAPIServiceNamespace)
	_, err = client.Create(ctx, slice, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = client.Update(ctx, slice, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("publish the endpoints of Service default/talos: %w", err)
	}
	return nil
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
