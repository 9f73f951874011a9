// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	"github.com/cert-manager/cert-manager/pkg/healthz"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	// Importing one of these registers its controllers or its issuer.
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// electionID is the name of the controller's lease (cert-manager's deploy/charts
// grants the rights to this one only).
const electionID = "cert-manager-controller"

// workersPerController is the default of --concurrent-workers.
const workersPerController = 5

func runController(ctx context.Context, flags *pflag.FlagSet, args []string) error {
	client, election := addClientFlags(flags), addElectionFlags(flags)
	namespace := flags.String("namespace", "", "watch this namespace only")
	issuers := flags.String("cluster-resource-namespace", "kube-system", "where the Secrets of ClusterIssuers are")
	health := flags.String("healthz-listen-address", "0.0.0.0:9403", "address of /livez")
	metrics := flags.String("metrics-listen-address", "0.0.0.0:9402", "address of /metrics")
	owner := flags.Bool("enable-certificate-owner-ref", false, "make Certificates own their Secrets")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if _, err := client.apply("controller"); err != nil {
		return err
	}
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         *client.kubeconfig,
		KubernetesAPIQPS:   20,
		KubernetesAPIBurst: 50,
		Namespace:          *namespace,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: *issuers},
		CertificateOptions: controller.CertificateOptions{
			EnableOwnerRef:                           *owner,
			CopiedAnnotationPrefixes:                 []string{"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/"},
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	})
	if err != nil {
		return err
	}
	root, err := factory.Build("controller")
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	healthServer := healthz.NewServer(20 * time.Second)
	if err := serveHealth(ctx, group, healthServer, *health); err != nil {
		return err
	}
	if err := serveMetrics(ctx, group, root, *metrics); err != nil {
		return err
	}
	work := func(ctx context.Context) error { return runControllers(ctx, factory, root, *namespace) }
	group.Go(func() error {
		if !*election.enabled {
			return work(ctx)
		}
		return lead(ctx, root, *election.namespace, healthServer, work)
	})
	return group.Wait()
}

func serveHealth(ctx context.Context, group *errgroup.Group, server *healthz.Server, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serving health checks: %w", err)
	}
	group.Go(func() error { return server.Start(ctx, listener) })
	return nil
}

func serveMetrics(ctx context.Context, group *errgroup.Group, root *controller.Context, address string) error {
	if address == "0" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serving metrics: %w", err)
	}
	server := root.Metrics.NewServer(listener)
	group.Go(func() error { return server.Serve(listener) })
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	return nil
}

// runControllers runs every controller that is linked in.
func runControllers(ctx context.Context, factory *controller.ContextFactory, root *controller.Context, namespace string) error {
	group, ctx := errgroup.WithContext(ctx)
	for name, construct := range controller.Known() {
		if namespace != "" && name == clusterissuers.ControllerName {
			continue
		}
		loop, err := construct(factory)
		if err != nil {
			return fmt.Errorf("making controller %s: %w", name, err)
		}
		group.Go(func() error {
			klog.InfoS("starting", "controller", name)
			return loop.Run(workersPerController, ctx)
		})
	}
	root.SharedInformerFactory.Start(ctx.Done())
	root.KubeSharedInformerFactory.Start(ctx.Done())
	return group.Wait()
}

// lead does the work once, and as long as, this process is the leader.
func lead(ctx context.Context, root *controller.Context, namespace string, health *healthz.Server, work func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, namespace, electionID,
		root.Client.CoreV1(), root.Client.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: fmt.Sprintf("%s-%d", host, os.Getpid()), EventRecorder: root.Recorder})
	if err != nil {
		return fmt.Errorf("electing a leader: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   60 * time.Second,
		RenewDeadline:   40 * time.Second,
		RetryPeriod:     15 * time.Second,
		ReleaseOnCancel: true,
		WatchDog:        health.LeaderHealthzAdaptor,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				failed <- work(ctx)
				cancel()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("electing a leader: %w", err)
	}
	health.LeaderHealthzAdaptor.SetLeaderElection(elector)
	elector.Run(ctx)
	select {
	case err := <-failed:
		return err
	default:
		return errors.New("lost the election")
	}
}
