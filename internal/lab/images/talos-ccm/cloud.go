// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	cloudprovider "k8s.io/cloud-provider"
	cloudapi "k8s.io/cloud-provider/api"
	nodehelpers "k8s.io/cloud-provider/node/helpers"
	"k8s.io/klog/v2"
)

const (
	providerName = "talos"

	platformLabel    = "node.cloudprovider.kubernetes.io/platform"
	clusterNameLabel = "node.cloudprovider.kubernetes.io/clustername"
)

// askTimeout bounds one look at a node, which the original retries for as long.
const askTimeout = 10 * time.Second

// talosCloud is the cloud whose instances are Talos nodes.
type talosCloud struct {
	talos *client.Client
	kube  kubernetes.Interface
}

// newCloud connects with the talosconfig that Talos puts into the pod's Secret
// (/var/run/secrets/talos.dev/config). Without one there is nothing to start.
func newCloud(io.Reader) (cloudprovider.Interface, error) {
	settings := []client.OptionFunc{client.WithDefaultConfig()}
	if endpoints := os.Getenv("TALOS_ENDPOINTS"); endpoints != "" {
		settings = append(settings, client.WithEndpoints(strings.Split(endpoints, ",")...))
	}
	talos, err := client.New(context.Background(), settings...)
	if err != nil {
		return nil, fmt.Errorf("opening the Talos API: %w", err)
	}
	return &talosCloud{talos: talos}, nil
}

func (c *talosCloud) Initialize(builder cloudprovider.ControllerClientBuilder, _ <-chan struct{}) {
	c.kube = builder.ClientOrDie(serviceAccount())
}

func (c *talosCloud) InstancesV2() (cloudprovider.InstancesV2, bool)             { return c, true }
func (c *talosCloud) Instances() (cloudprovider.Instances, bool)                 { return nil, false }
func (c *talosCloud) LoadBalancer() (cloudprovider.LoadBalancer, bool)           { return nil, false }
func (c *talosCloud) Zones() (cloudprovider.Zones, bool)                         { return nil, false }
func (c *talosCloud) Clusters() (cloudprovider.Clusters, bool)                   { return nil, false }
func (c *talosCloud) Routes() (cloudprovider.Routes, bool)                       { return nil, false }
func (c *talosCloud) ProviderName() string                                       { return providerName }
func (c *talosCloud) HasClusterID() bool                                         { return true }
func (c *talosCloud) InstanceExists(context.Context, *corev1.Node) (bool, error) { return true, nil }
func (c *talosCloud) InstanceShutdown(context.Context, *corev1.Node) (bool, error) {
	return false, nil
}

// InstanceMetadata answers what Talos knows about the machine. A node whose
// kubelet does not run with an external cloud provider has no annotation with
// its addresses, and nothing is known about it.
func (c *talosCloud) InstanceMetadata(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	provided := node.Annotations[cloudapi.AnnotationAlphaProvidedIPAddr]
	if provided == "" {
		klog.InfoS("The kubelet does not run with --cloud-provider=external", "node", node.Name)
		return &cloudprovider.InstanceMetadata{}, nil
	}
	addresses := strings.Split(provided, ",")
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	platform, asked, err := c.platform(ctx, addresses)
	if err != nil {
		return nil, fmt.Errorf("asking node %s for its platform metadata: %w", node.Name, err)
	}
	external, err := c.externalAddresses(ctx, asked, addresses)
	if err != nil {
		return nil, fmt.Errorf("asking node %s for its addresses: %w", node.Name, err)
	}
	metadata := &cloudprovider.InstanceMetadata{
		ProviderID:    platform.ProviderID,
		InstanceType:  platform.InstanceType,
		NodeAddresses: append(addressesOf(corev1.NodeInternalIP, addresses), addressesOf(corev1.NodeExternalIP, external)...),
		Zone:          platform.Zone,
		Region:        platform.Region,
	}
	if metadata.ProviderID == "" {
		metadata.ProviderID = fmt.Sprintf("%s://%s/%s", providerName, platform.Platform, asked)
	}
	metadata.NodeAddresses = append(metadata.NodeAddresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: node.Name})
	if strings.Index(platform.Hostname, ".") > 0 {
		metadata.NodeAddresses = append(metadata.NodeAddresses, corev1.NodeAddress{Type: corev1.NodeInternalDNS, Address: platform.Hostname})
	}
	c.label(node, platform)
	return metadata, nil
}

func addressesOf(kind corev1.NodeAddressType, addresses []string) []corev1.NodeAddress {
	var result []corev1.NodeAddress
	for _, address := range addresses {
		result = append(result, corev1.NodeAddress{Type: kind, Address: address})
	}
	return result
}

// platform asks the first address that answers.
func (c *talosCloud) platform(ctx context.Context, addresses []string) (*runtime.PlatformMetadataSpec, string, error) {
	var errs []error
	for _, address := range addresses {
		found, err := safe.StateGetByID[*runtime.PlatformMetadata](client.WithNode(ctx, address), c.talos.COSI, runtime.PlatformMetadataID)
		if err == nil {
			return found.TypedSpec(), address, nil
		}
		errs = append(errs, err)
	}
	return nil, "", errors.Join(errs...)
}

// externalAddresses lists the public addresses on the machine's interfaces.
func (c *talosCloud) externalAddresses(ctx context.Context, node string, internal []string) ([]string, error) {
	list, err := safe.StateListAll[*network.AddressStatus](client.WithNode(ctx, node), c.talos.COSI)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, address := range internal {
		known[address] = true
	}
	var external []string
	for status := range list.All() {
		address := status.TypedSpec().Address.Addr()
		if status.TypedSpec().LinkName == "lo" || !address.IsGlobalUnicast() || address.IsPrivate() || known[address.String()] {
			continue
		}
		external = append(external, address.String())
	}
	return external, nil
}

func (c *talosCloud) label(node *corev1.Node, platform *runtime.PlatformMetadataSpec) {
	labels := map[string]string{}
	if platform.Platform != "" {
		labels[platformLabel] = platform.Platform
	}
	if name := c.talos.GetClusterName(); name != "" {
		labels[clusterNameLabel] = name
	}
	for name, value := range node.Labels {
		if labels[name] == value {
			delete(labels, name)
		}
	}
	if len(labels) > 0 && !nodehelpers.AddOrUpdateLabelsOnNode(c.kube, labels, node) {
		klog.InfoS("Could not label the node", "node", node.Name)
	}
}
