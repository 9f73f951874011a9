// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Command talos-cloud-controller-manager stands in for the Talos cloud
// controller manager, whose module the Go module proxy does not serve. It is
// built on the same library, k8s.io/cloud-provider, so that its flags, leader
// election, health checks, service accounts and the controller that sets
// addresses, labels and provider ids and takes the uninitialized taint away are
// the real ones. What is the lab's own is the cloud: it asks the node's Talos
// API for the platform's metadata, as the original does (its pkg/talos).
//
// It has the two controllers that this project's examples use, cloud-node and
// node-csr-approval; node transformations, other platforms' peculiarities and
// the IPAM controller are left out.
package main

import (
	"context"
	"fmt"
	"os"

	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/cli/flag"
	controllermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"
	"k8s.io/klog/v2"
)

const (
	// csrController is the approval controller's full name; csrAlias is what
	// the chart calls it.
	csrController = "certificatesigningrequest-approving-controller"
	csrAlias      = "node-csr-approval"
)

func main() {
	cloudprovider.RegisterCloudProvider(providerName, newCloud)
	settings, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		fmt.Fprintln(os.Stderr, "talos-cloud-controller-manager:", err)
		os.Exit(1)
	}
	constructors := app.DefaultInitFuncConstructors
	constructors[csrController] = app.ControllerInitFuncConstructor{
		InitContext: app.ControllerInitContext{ClientName: serviceAccount()},
		Constructor: startApproval,
	}
	app.ControllersDisabledByDefault.Insert(csrController)
	aliases := names.CCMControllerAliases()
	aliases[csrAlias] = csrController
	command := app.NewCloudControllerManagerCommand(settings, openCloud, constructors, aliases, flag.NamedFlagSets{}, context.Background().Done())
	os.Exit(cli.Run(command))
}

// serviceAccount is the account that clients are made for; the chart says which.
func serviceAccount() string {
	if name := os.Getenv("SERVICE_ACCOUNT"); name != "" {
		return name
	}
	return "talos-cloud-controller-manager"
}

func openCloud(c *config.CompletedConfig) cloudprovider.Interface {
	provider := c.ComponentConfig.KubeCloudShared.CloudProvider
	cloud, err := cloudprovider.InitCloudProvider(provider.Name, provider.CloudConfigFile)
	if err == nil && cloud == nil {
		err = fmt.Errorf("there is no cloud provider %q", provider.Name)
	}
	if err != nil {
		klog.ErrorS(err, "Cloud provider could not be initialized")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
	return cloud
}

func startApproval(setup app.ControllerInitContext, _ *config.CompletedConfig, _ cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, c controllermanager.ControllerContext) (controller.Interface, bool, error) {
		approver := &approver{client: c.ClientBuilder.ClientOrDie(setup.ClientName)}
		go approver.run(ctx)
		return nil, true, nil
	}
}
