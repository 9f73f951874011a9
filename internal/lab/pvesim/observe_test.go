// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim_test

import (
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

// An observer hears who called what and how it was answered, also where the call
// was refused, and no secret.
func TestAnObserverHearsOfEveryCall(t *testing.T) {
	var mu sync.Mutex
	var heard []pvesim.Answer
	l := start(t, pvesim.Options{Observe: func(a pvesim.Answer) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, a)
	}})
	l.ok("POST", "/access/users", form("userid", "capi@pve"), nil)
	secret, err := l.CreateToken("capi@pve", "token", true)
	if err != nil {
		t.Fatal(err)
	}
	l.as("capi@pve!token="+secret).send("POST", "/pools", form("poolid", "p"))
	l.as("capi@pve!token=wrong").send("GET", "/version", nil)
	l.as("").send("GET", "/version", nil)

	var login struct{ Ticket string }
	l.as("").ok("POST", "/access/ticket", form("username", "root@pam", "password", pvesim.RootPassword), &login)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.APIURL()+"/version?"+url.Values{"a": {"b"}}.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: login.Ticket})
	l.as("").roundTrip(req)

	want := []pvesim.Answer{
		{Caller: "root@pam!test", Method: "POST", Path: "/access/users", Status: 200},
		{Caller: "capi@pve!token", Method: "POST", Path: "/pools", Status: 403, Reason: "Permission check failed (/pool/p, Pool.Allocate)"},
		{Caller: "capi@pve!token", Method: "GET", Path: "/version", Status: 401, Reason: "Authentication failed!"},
		{Method: "GET", Path: "/version", Status: 401, Reason: "No ticket"},
		{Method: "POST", Path: "/access/ticket", Status: 200},
		{Caller: "root@pam", Method: "GET", Path: "/version", Status: 400, Reason: "Parameter verification failed."},
	}
	if !slices.Equal(heard, want) {
		t.Errorf("heard of %+v, want %+v", heard, want)
	}
}
