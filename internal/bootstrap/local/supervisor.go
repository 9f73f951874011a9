// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/controlplane"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/network"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/node"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/oci"
	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
)

const (
	// supervisorName is what the process list shows of a supervisor.
	supervisorName = "capi-local-supervisor"
	selfExe        = "/proc/self/exe"
)

// ReexecMain returns at once unless the process was started as a helper of this
// package or of package sandbox, in which case it does the helper's work and
// exits. It must be the first call of main and of TestMain in every program that
// may start a local cluster.
func ReexecMain() {
	sandbox.ReexecMain()
	if len(os.Args) != 3 || os.Args[0] != supervisorName {
		return
	}
	if err := supervise(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// supervisor runs one cluster.
type supervisor struct {
	folder
	cluster bootstrap.Cluster
	status  status
	// closers end the cluster's parts, the last one first.
	closers []func(context.Context) error
}

// supervise runs the cluster until a signal or the loss of one of its programs.
func supervise(state, name string) error {
	f, err := newFolder(state, name)
	if err != nil {
		return err
	}
	lock := flock.New(f.path("run.lock"), flock.SetPermissions(0o600))
	// Somebody who asks whether a supervisor lives holds the lock for a moment.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if taken, err := lock.TryLockContext(ctx, lockInterval/10); err != nil || !taken {
		return fmt.Errorf("the cluster %q has a supervisor already: %w", name, err)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP)

	s := &supervisor{folder: f, status: status{PID: os.Getpid()}}
	err = s.run(signals)
	if err != nil {
		s.status.Error = err.Error()
	}
	s.status.Ready = false
	return errors.Join(err, s.say(phaseStopped, "the cluster has stopped"), os.RemoveAll(f.path("kubeconfig")), lock.Unlock())
}

// The phases after a cluster has run, or has failed to start.
const (
	phaseStopping = "stopping"
	phaseStopped  = "stopped"
)

func (s *supervisor) say(phase, message string) error {
	s.status.Phase, s.status.Message = phase, message
	fmt.Fprintln(os.Stderr, time.Now().Format(time.RFC3339), phase+":", message)
	return writeJSON(s.path("status.json"), s.status)
}

// report is the control plane's progress.
func (s *supervisor) report(_ context.Context, phase, message string) {
	if err := s.say(phase, message); err != nil {
		fmt.Fprintln(os.Stderr, "telling of the progress:", err)
	}
}

func (s *supervisor) run(signals <-chan os.Signal) (err error) {
	starting, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := make(chan struct{})
	go func() {
		<-signals
		cancel()
		close(stop)
		<-signals // the second one does not wait for anything
		os.Exit(1)
	}()
	defer func() {
		err = errors.Join(err, s.stop())
	}()
	control, err := s.start(starting)
	if err != nil {
		return err
	}
	s.status.Ready = true
	if err := s.say("running", "the cluster runs at "+control.Endpoint().String()); err != nil {
		return err
	}
	select {
	case <-stop:
		return nil
	case <-control.Done():
		return control.Err()
	}
}

// stopPatience is how long pods and programs may take to end.
const stopPatience = 40 * time.Second

func (s *supervisor) stop() error {
	s.status.Ready = false
	errs := []error{s.say(phaseStopping, "the cluster is stopping")}
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i](ctx))
	}
	return errors.Join(errs...)
}

func (s *supervisor) later(f func(context.Context) error) { s.closers = append(s.closers, f) }

var loopback = netip.MustParseAddr("127.0.0.1")

// start starts control plane, network and node.
func (s *supervisor) start(ctx context.Context) (*controlplane.ControlPlane, error) {
	if err := s.say("images", "looking for the control plane's images"); err != nil {
		return nil, err
	}
	var err error
	if s.cluster, err = s.readCluster(); err != nil {
		return nil, err
	}
	store, err := s.store()
	if err != nil {
		return nil, err
	}
	images := controlplane.ImagesOf(s.cluster.KubernetesVersion)
	binaries, err := images.Binaries(ctx, func(ctx context.Context, ref string) (string, error) {
		image, err := store.Unpack(ctx, ref)
		if err != nil {
			return "", err
		}
		return image.Root, nil
	})
	if err != nil {
		return nil, err
	}
	egress, err := network.ListenUnix(s.path("control-plane", "egress.sock"))
	if err != nil {
		return nil, err
	}
	s.later(func(context.Context) error { return egress.Close() })
	control, err := controlplane.Start(ctx, controlplane.Config{
		Name: s.name, Dir: s.path("control-plane"), Address: loopback, Port: s.lastPort(ctx), Binaries: binaries,
		EgressSocket: s.path("control-plane", "egress.sock"),
		AuditLog:     s.path("control-plane", "logs", "audit.log"),
		// The objects live as long as a bootstrap takes, and a crash of the
		// machine ends that anyway.
		Etcd: controlplane.Etcd{NoFsync: true},
	}, s.report)
	if err != nil {
		return nil, err
	}
	s.later(control.Stop)
	if err := s.startNode(ctx, control, store, egress); err != nil {
		return nil, err
	}
	return control, writeFile(s.path("kubeconfig"), control.Kubeconfig())
}

// store answers where images come from: the given sources, then registries.
func (s *supervisor) store() (*oci.Store, error) {
	var sources []oci.Source
	for _, text := range s.cluster.Images {
		source, err := oci.ParseSource(text)
		if err != nil {
			return nil, err
		}
		sources = append(sources, source)
	}
	return oci.NewStore(filepath.Join(s.state, "images"), append(sources, oci.Registry{})...), nil
}

// lastPort answers the API server's port of the last run if it is still free, so
// that kubeconfigs stay valid, else 0.
func (s *supervisor) lastPort(ctx context.Context) int {
	path := s.path(portFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	port, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	// A program that was killed may still be closing its sockets.
	patience, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(loopback.String(), strconv.Itoa(port)))
		if err == nil && l.Close() == nil {
			return port
		}
		select {
		case <-time.After(pollInterval):
		case <-patience.Done():
			return 0
		}
	}
}

// nodeAddress is the node's invented address; its pods get those that follow.
var nodeAddress = netip.MustParseAddr("10.244.0.1")

func (s *supervisor) startNode(ctx context.Context, control *controlplane.ControlPlane, store *oci.Store, egress net.Listener) error {
	if err := writeFile(s.path(portFile), []byte(strconv.Itoa(int(control.Endpoint().Port())))); err != nil {
		return err
	}
	proxy, err := control.ClientConfig("system:kube-proxy")
	if err != nil {
		return err
	}
	pods, err := network.Start(ctx, network.Config{Client: proxy, APIServer: control.Endpoint, PodCIDR: controlplane.DefaultPodCIDR})
	if err != nil {
		return err
	}
	s.later(func(context.Context) error { pods.Stop(); return nil })
	go func() {
		if err := pods.ServeEgress(context.Background(), egress); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	name := s.name + "-node"
	kubelet, err := control.ClientConfig("system:node:"+name, "system:nodes")
	if err != nil {
		return err
	}
	serving, err := control.ServingCertificate("system:node:"+name, name, nodeAddress.String())
	if err != nil {
		return err
	}
	prefix, err := nodeAddress.Prefix(24)
	if err != nil {
		return err
	}
	if err := s.say("starting-node", "the node "+name); err != nil {
		return err
	}
	running, err := node.Start(ctx, node.Config{
		Name: name, Dir: s.path("node"), Client: kubelet, Network: pods, Images: store, PodCIDR: prefix, Address: nodeAddress,
		KubernetesVersion: s.cluster.KubernetesVersion, OSImage: "processes of this machine",
		Serving: node.Serving{Certificate: serving, ClientCA: control.PKI().CA.Cert},
	})
	if err != nil {
		return err
	}
	s.later(running.Stop)
	return nil
}
