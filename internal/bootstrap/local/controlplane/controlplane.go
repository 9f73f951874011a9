// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package controlplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/progress"
)

// ControlPlane is a running control plane.
type ControlPlane struct {
	cfg        Config
	files      *files
	endpoint   netip.AddrPort
	etcdClient string
	etcdPeer   string
	kubeconfig []byte

	mu        sync.Mutex
	stopping  bool
	processes []*process // in the order of their start
	done      chan struct{}
	err       error
}

// Start starts a control plane and returns when its API server is ready and
// controller-manager and scheduler are healthy. On an error nothing is left
// running; what was written to Dir stays for the next try. ctx bounds the start
// only: the control plane runs until [ControlPlane.Stop], or until this process
// ends.
func Start(ctx context.Context, cfg Config, report progress.Reporter) (*ControlPlane, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("starting a control plane: %w", err)
	}
	f, err := newFiles(cfg)
	if err != nil {
		return nil, fmt.Errorf("starting control plane %s: %w", cfg.Name, err)
	}
	c := &ControlPlane{cfg: cfg, files: f, done: make(chan struct{})}
	if err := c.start(ctx, report); err != nil {
		// The caller's context may have ended; what runs has to go all the same.
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopAfterFailure)
		defer cancel()
		return nil, fmt.Errorf("starting control plane %s: %w", cfg.Name, errors.Join(err, c.Stop(stopCtx)))
	}
	return c, nil
}

func (c *ControlPlane) start(ctx context.Context, report progress.Reporter) error {
	ports, err := c.choosePorts(ctx)
	if err != nil {
		return err
	}
	defer ports.release()
	cfg := c.cfg
	server := ports.api.url("https")
	c.endpoint = netip.AddrPortFrom(cfg.Address, uint16(ports.api.number))
	c.etcdClient, c.etcdPeer = ports.etcdClient.url("https"), ports.etcdPeer.url("https")
	if c.kubeconfig, err = c.files.kubeconfig(server, userAdmin, groupMasters); err != nil {
		return err
	}

	report.Report(ctx, "starting-etcd", "etcd at "+c.etcdClient)
	if err := c.run(ctx, "etcd", cfg.Binaries.Etcd, c.files.etcdArgs(ports.etcdClient, ports.etcdPeer), c.etcdClient+"/health", c.etcdHTTP); err != nil {
		return err
	}
	report.Report(ctx, "starting-apiserver", "kube-apiserver at "+server)
	args, err := c.files.apiServerArgs(ports.api, ports.etcdClient)
	if err != nil {
		return err
	}
	if err := c.run(ctx, "kube-apiserver", cfg.Binaries.APIServer, args, server+"/readyz", c.adminHTTP); err != nil {
		return err
	}
	report.Report(ctx, "starting-controllers", "kube-controller-manager and kube-scheduler")
	if args, err = c.files.controllerManagerArgs(server, ports.controllerManager); err != nil {
		return err
	}
	if err := c.run(ctx, "kube-controller-manager", cfg.Binaries.ControllerManager, args, "", nil); err != nil {
		return err
	}
	if args, err = c.files.schedulerArgs(server, ports.scheduler); err != nil {
		return err
	}
	if err := c.run(ctx, "kube-scheduler", cfg.Binaries.Scheduler, args, ports.scheduler.url("https")+"/healthz", c.adminHTTP); err != nil {
		return err
	}
	if err := c.wait(ctx, c.processes[2], ports.controllerManager.url("https")+"/healthz", c.adminHTTP); err != nil {
		return err
	}
	return nil
}

// run starts a program, watches it, and waits until url answers 200 (an empty
// url: not at all).
func (c *ControlPlane) run(ctx context.Context, name, binary string, args []string, url string, client func() (*http.Client, error)) error {
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	p, err := startProcess(name, c.cfg.path("logs", name+".log"), c.cfg.Dir, binary, args)
	if err != nil {
		c.mu.Unlock()
		return err
	}
	c.processes = append(c.processes, p)
	c.mu.Unlock()
	go c.watch(p)
	if url == "" {
		return nil
	}
	return c.wait(ctx, p, url, client)
}

// watch notices a program that ends though nobody asked it to.
func (c *ControlPlane) watch(p *process) {
	<-p.done
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping || c.err != nil {
		return
	}
	c.err = p.ended()
	close(c.done)
}

// pollInterval is how often a starting program is asked whether it is ready.
const pollInterval = 100 * time.Millisecond

func (c *ControlPlane) wait(ctx context.Context, p *process, url string, newClient func() (*http.Client, error)) error {
	client, err := newClient()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StartTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	last := errors.New("not asked yet")
	for {
		err := ask(ctx, client, url)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil { // the end of the wait says less than the answer before it
			last = err
		}
		select {
		case <-ticker.C:
		case <-c.done:
			return c.Err()
		case <-p.done:
			return p.ended()
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s to be ready: %w; last answer: %w; its log %s ends with:\n%s",
				p.name, context.Cause(ctx), last, p.log, tail(p.log, logLines))
		}
	}
}

func ask(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return err
	}
	return fmt.Errorf("%s answered %s: %s", url, resp.Status, bytes.TrimSpace(body))
}

// etcdHTTP answers a client of etcd, which wants a certificate of its own
// authority.
func (c *ControlPlane) etcdHTTP() (*http.Client, error) {
	pair, err := c.files.etcd.issue(leaf{name: "health"})
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.files.pki.EtcdCA.Cert)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	}}, nil
}

// adminHTTP answers a client whom the API server, controller-manager and
// scheduler trust. It goes through no proxy.
func (c *ControlPlane) adminHTTP() (*http.Client, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	return rest.HTTPClientFor(config)
}

// Endpoint is where the API server listens.
func (c *ControlPlane) Endpoint() netip.AddrPort { return c.endpoint }

// EtcdClientURL is where etcd's clients reach it.
func (c *ControlPlane) EtcdClientURL() string { return c.etcdClient }

// EtcdPeerURL is where etcd's other members reach it.
func (c *ControlPlane) EtcdPeerURL() string { return c.etcdPeer }

// ServiceIP is the cluster address of the Service default/kubernetes.
func (c *ControlPlane) ServiceIP() netip.Addr { return c.cfg.serviceIP() }

// PKI holds the cluster's authorities, as given or as made.
func (c *ControlPlane) PKI() *PKI { return c.files.pki }

// Kubeconfig is the cluster administrator's (group system:masters). It is a
// secret.
func (c *ControlPlane) Kubeconfig() []byte { return bytes.Clone(c.kubeconfig) }

// RESTConfig is the cluster administrator's client configuration.
func (c *ControlPlane) RESTConfig() (*rest.Config, error) { return restConfig(c.kubeconfig) }

// ClientConfig is the client configuration of a user with a fresh certificate,
// for example "system:node:n1" of the group "system:nodes".
func (c *ControlPlane) ClientConfig(user string, groups ...string) (*rest.Config, error) {
	kubeconfig, err := c.files.kubeconfig("https://"+c.endpoint.String(), user, groups...)
	if err != nil {
		return nil, err
	}
	return restConfig(kubeconfig)
}

// ServingCertificate makes a server's certificate for the names and addresses,
// such as a kubelet's. The answered function is called at each handshake; it
// makes another certificate before the first one expires.
func (c *ControlPlane) ServingCertificate(name string, sans ...string) (func() (*tls.Certificate, error), error) {
	var mu sync.Mutex
	var current *tls.Certificate
	get := func() (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		if current != nil && time.Until(current.Leaf.NotAfter) > leafLifetime/5 {
			return current, nil
		}
		pair, err := c.files.ca.issue(leaf{name: name, groups: []string{"system:nodes"}, sans: sans})
		if err != nil {
			return nil, err
		}
		made, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			return nil, fmt.Errorf("loading the certificate of %s: %w", name, err)
		}
		current = &made
		return current, nil
	}
	_, err := get()
	return get, err
}

func restConfig(kubeconfig []byte) (*rest.Config, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	return config, nil
}

// Done is closed when one of the programs has ended though nobody asked it to;
// [ControlPlane.Err] says which. The others still run then: call
// [ControlPlane.Stop].
func (c *ControlPlane) Done() <-chan struct{} { return c.done }

// Err says which program ended by itself and quotes its log; nil while all run,
// and after Stop.
func (c *ControlPlane) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

const (
	// stopAfterFailure bounds the stop of a control plane that did not start.
	stopAfterFailure = 30 * time.Second
	// patience is how long a program may take to end before it is killed. The
	// API server ends its watches at once, and etcd flushes.
	patience = 10 * time.Second
)

// Stop ends the programs in the reverse order of their start, and so the API
// server before etcd: without etcd it does not end for minutes. Programs that do
// not end in time, or not before ctx ends, are killed. Stop may be called more
// than once.
func (c *ControlPlane) Stop(ctx context.Context) error {
	c.mu.Lock()
	c.stopping = true
	processes := c.processes
	c.mu.Unlock()
	var errs []error
	for i := len(processes) - 1; i >= 0; i-- {
		errs = append(errs, processes[i].stop(ctx, patience))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stopping control plane %s: %w", c.cfg.Name, err)
	}
	return nil
}
