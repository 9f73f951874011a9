// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// ttl is short: Services come and go, and asking again costs nothing.
	ttl = 5
	// resolveTimeout bounds the question to the host's resolver.
	resolveTimeout = 10 * time.Second
)

// ServeDNS answers a pod's query: names of Services from the cluster, all other
// names as the host's resolver knows them. Only IPv4 addresses are answered,
// since a pod has no other; a name that exists has no AAAA record here.
func (n *Network) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	reply := n.answer(ctx, query)
	if w.LocalAddr() == nil || w.LocalAddr().Network() != "tcp" {
		size := dns.MinMsgSize
		if opt := query.IsEdns0(); opt != nil {
			size = int(opt.UDPSize())
		}
		reply.Truncate(size)
	}
	// The pod asks again when the answer is lost.
	_ = w.WriteMsg(reply)
}

func (n *Network) answer(ctx context.Context, query *dns.Msg) *dns.Msg {
	reply := new(dns.Msg)
	reply.SetReply(query)
	reply.RecursionAvailable = true
	if len(query.Question) != 1 {
		reply.Rcode = dns.RcodeFormatError
		return reply
	}
	question := query.Question[0]
	name := strings.ToLower(dns.Fqdn(question.Name))
	ips, rcode := n.lookup(ctx, name)
	reply.Rcode = rcode
	if question.Qtype != dns.TypeA && question.Qtype != dns.TypeANY {
		return reply
	}
	for _, ip := range ips {
		reply.Answer = append(reply.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl},
			A:   ip.AsSlice(),
		})
	}
	return reply
}

func (n *Network) lookup(ctx context.Context, name string) ([]netip.Addr, int) {
	domain := n.cfg.Domain + "."
	if service, ok := strings.CutSuffix(name, ".svc."); ok {
		return n.lookupService(service)
	}
	if service, ok := strings.CutSuffix(name, ".svc."+domain); ok {
		return n.lookupService(service)
	}
	if name == domain || strings.HasSuffix(name, "."+domain) {
		return nil, dns.RcodeNameError
	}
	ips, err := n.cfg.Resolver.LookupNetIP(ctx, "ip4", name)
	if err != nil {
		// "Not found" is an answer, anything else is the lack of one.
		if notFound := new(net.DNSError); errors.As(err, &notFound) && notFound.IsNotFound {
			return nil, dns.RcodeNameError
		}
		return nil, dns.RcodeServerFailure
	}
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return ips, dns.RcodeSuccess
}

// lookupService answers the address of "service.namespace", the pods' of a
// headless one, or a single pod's of "host.service.namespace".
func (n *Network) lookupService(name string) ([]netip.Addr, int) {
	parts := strings.Split(name, ".")
	host := ""
	if len(parts) == 3 {
		host, parts = parts[0], parts[1:]
	}
	if len(parts) != 2 {
		return nil, dns.RcodeNameError
	}
	service, err := n.services.Services(parts[1]).Get(parts[0])
	if apierrors.IsNotFound(err) {
		return nil, dns.RcodeNameError
	}
	if err != nil {
		return nil, dns.RcodeServerFailure
	}
	if ip, err := netip.ParseAddr(service.Spec.ClusterIP); err == nil && host == "" {
		return []netip.Addr{ip}, dns.RcodeSuccess
	}
	ips, err := n.podsOf(service, host)
	switch {
	case err != nil:
		return nil, dns.RcodeServerFailure
	case len(ips) == 0 && host != "":
		return nil, dns.RcodeNameError
	}
	return ips, dns.RcodeSuccess
}

func (n *Network) podsOf(service *corev1.Service, host string) ([]netip.Addr, error) {
	slices, err := n.slicesOf(service)
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready || service.Spec.PublishNotReadyAddresses
			if !ready || host != "" && (endpoint.Hostname == nil || *endpoint.Hostname != host) {
				continue
			}
			for _, address := range endpoint.Addresses {
				if ip, err := netip.ParseAddr(address); err == nil && ip.Is4() {
					ips = append(ips, ip)
				}
			}
		}
	}
	return ips, nil
}
