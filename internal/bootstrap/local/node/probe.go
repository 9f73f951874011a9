// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/bootstrap/local/sandbox"
)

const killSignal = syscall.SIGKILL

// probe keeps the container's readiness up to date until ctx ends, and says in
// unwell when it has to be restarted.
func (c *container) probe(ctx context.Context, running *sandbox.Container, unwell chan<- string) {
	if p := c.spec.StartupProbe; p != nil && !c.awaitStartup(ctx, running, p, unwell) {
		return
	}
	c.set(func() {
		c.started = true
		c.ready = c.spec.ReadinessProbe == nil
		select {
		case <-c.everStarted:
		default:
			close(c.everStarted)
		}
	})
	var both sync.WaitGroup
	if p := c.spec.ReadinessProbe; p != nil {
		both.Go(func() {
			c.repeat(ctx, running, p, "Readiness", func(healthy bool) bool {
				c.set(func() { c.ready = healthy && c.running == running })
				return true
			})
		})
	}
	if p := c.spec.LivenessProbe; p != nil {
		both.Go(func() {
			c.repeat(ctx, running, p, "Liveness", func(healthy bool) bool {
				if !healthy {
					unwell <- "failed liveness probe"
				}
				return healthy
			})
		})
	}
	both.Wait()
}

func (c *container) awaitStartup(ctx context.Context, running *sandbox.Container, p *corev1.Probe, unwell chan<- string) bool {
	started := false
	c.repeat(ctx, running, p, "Startup", func(healthy bool) bool {
		started = healthy
		if !healthy {
			unwell <- "failed startup probe"
		}
		return false
	})
	return started
}

// repeat probes at the probe's pace and calls result whenever a threshold is
// passed, until that answers false or ctx ends.
func (c *container) repeat(ctx context.Context, running *sandbox.Container, p *corev1.Probe, kind string, result func(healthy bool) bool) {
	if !sleep(ctx, time.Duration(p.InitialDelaySeconds)*time.Second) {
		return
	}
	pace := time.Duration(max(p.PeriodSeconds, 1)) * time.Second
	first, healthy, inRow := true, false, int32(0)
	for {
		err := c.ask(ctx, running, p)
		if ctx.Err() != nil {
			return
		}
		ok := err == nil
		if !ok {
			c.w.event(corev1.EventTypeWarning, "Unhealthy", kind+" probe failed: "+err.Error())
		}
		if ok == healthy && !first {
			inRow++
		} else {
			healthy, inRow, first = ok, 1, false
		}
		threshold := max(p.FailureThreshold, 1)
		if ok {
			threshold = max(p.SuccessThreshold, 1)
		}
		if inRow == threshold && !result(ok) {
			return
		}
		// A container that is not ready is asked more often than it says, so that
		// whoever waits for it need not wait for a whole period.
		pause := pace
		if !ok && kind == "Readiness" {
			pause = min(pace, time.Second)
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// ask probes once; nil means healthy.
func (c *container) ask(ctx context.Context, running *sandbox.Container, p *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(p.TimeoutSeconds, 1))*time.Second)
	defer cancel()
	switch {
	case p.Exec != nil:
		return execIn(ctx, running, p.Exec.Command)
	case p.HTTPGet != nil:
		return c.httpGet(ctx, p.HTTPGet)
	case p.TCPSocket != nil:
		address, err := c.address(p.TCPSocket.Host, p.TCPSocket.Port)
		if err != nil {
			return err
		}
		conn, err := c.dial(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	case p.GRPC != nil:
		return c.grpcHealth(ctx, p.GRPC)
	}
	return nil
}

func execIn(ctx context.Context, running *sandbox.Container, command []string) error {
	var out bytes.Buffer
	code, err := running.Exec(ctx, command, nil, &out, &out)
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("command %q exited with %d: %s", command, code, cut(out.String()))
	}
	return nil
}

// cut shortens what a container said for an event.
func cut(text string) string {
	const most = 1024
	return strings.ToValidUTF8(strings.TrimSpace(text[:min(len(text), most)]), "")
}

// dial opens a connection from inside the pod.
func (c *container) dial(ctx context.Context, network, address string) (net.Conn, error) {
	pod := c.w.sandbox()
	if pod == nil {
		return nil, sandbox.ErrNotRunning
	}
	return pod.Dial(ctx, network, address)
}

// address answers where a probe goes: to the pod, unless it names a host.
func (c *container) address(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		ip := c.w.address()
		if c.w.hostNetwork() {
			ip = c.w.node.cfg.SandboxAddress
		}
		host = ip.String()
	}
	number := port.IntVal
	if port.Type == intstr.String {
		number = 0
		for _, p := range c.spec.Ports {
			if p.Name == port.StrVal {
				number = p.ContainerPort
			}
		}
		if parsed, err := strconv.ParseInt(port.StrVal, 10, 32); err == nil {
			number = int32(parsed)
		}
	}
	if number <= 0 || number > 65535 {
		return "", fmt.Errorf("container %s has no port %q", c.spec.Name, port.String())
	}
	return net.JoinHostPort(host, strconv.Itoa(int(number))), nil
}

func (w *worker) address() netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ip
}

func (c *container) httpGet(ctx context.Context, action *corev1.HTTPGetAction) error {
	address, err := c.address(action.Host, action.Port)
	if err != nil {
		return err
	}
	scheme := strings.ToLower(string(action.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	target, err := url.Parse(scheme + "://" + address + "/" + strings.TrimPrefix(action.Path, "/"))
	if err != nil {
		return fmt.Errorf("path %q: %w", action.Path, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "kube-probe/1")
	request.Header.Set("Accept", "*/*")
	for _, header := range action.HTTPHeaders {
		request.Header.Add(header.Name, header.Value)
		if strings.EqualFold(header.Name, "Host") {
			request.Host = header.Value
		}
	}
	transport := &http.Transport{
		DialContext:       c.dial,
		DisableKeepAlives: true,
		// As the kubelet: a probe asks whether the server is there, not who it is.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 200 && response.StatusCode < 400 {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 1024))
	return errors.Join(fmt.Errorf("HTTP probe failed with statuscode: %d: %s", response.StatusCode, cut(string(body))), err)
}

func (c *container) grpcHealth(ctx context.Context, action *corev1.GRPCAction) error {
	address, err := c.address("", intstr.FromInt32(action.Port))
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return c.dial(ctx, "tcp", address) }))
	if err != nil {
		return err
	}
	defer conn.Close()
	request := &grpc_health_v1.HealthCheckRequest{}
	if action.Service != nil {
		request.Service = *action.Service
	}
	response, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, request)
	if err != nil {
		return err
	}
	if response.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("the service says %s", response.GetStatus())
	}
	return nil
}

// afterStart runs the postStart hook; when it fails the container has to go.
func (c *container) afterStart(ctx context.Context, running *sandbox.Container, unwell chan<- string) bool {
	if c.spec.Lifecycle == nil || c.spec.Lifecycle.PostStart == nil {
		return true
	}
	err := c.hook(ctx, running, c.spec.Lifecycle.PostStart)
	if err == nil {
		return true
	}
	if ctx.Err() == nil {
		c.w.event(corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed: "+err.Error())
		unwell <- "failed its postStart hook"
	}
	return false
}

// beforeStop runs the preStop hook; its failure does not keep the container.
func (c *container) beforeStop(ctx context.Context, running *sandbox.Container, grace time.Duration) {
	if c.spec.Lifecycle == nil || c.spec.Lifecycle.PreStop == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := c.hook(ctx, running, c.spec.Lifecycle.PreStop); err != nil {
		c.w.event(corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: "+err.Error())
	}
}

func (c *container) hook(ctx context.Context, running *sandbox.Container, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		return execIn(ctx, running, h.Exec.Command)
	case h.HTTPGet != nil:
		return c.httpGet(ctx, h.HTTPGet)
	case h.Sleep != nil:
		sleep(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
	}
	return nil
}
