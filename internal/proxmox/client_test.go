// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/terraform-provider-capi/terraform-provider-capi/internal/lab/pvesim"
)

func TestEndpointsThatPeoplePasteWork(t *testing.T) {
	for given, want := range map[string]string{
		"https://pve.example:8006":            "https://pve.example:8006",
		"https://pve.example:8006/":           "https://pve.example:8006",
		"https://pve.example:8006/api2/json":  "https://pve.example:8006",
		"https://pve.example:8006/api2/json/": "https://pve.example:8006",
		"https://pve.example":                 "https://pve.example:8006",
		"pve.example":                         "https://pve.example:8006",
		"10.0.0.1:443":                        "https://10.0.0.1:443",
		"https://[fd00::1]":                   "https://[fd00::1]:8006",
		" https://pve.example:8006/#v1:0 ":    "https://pve.example:8006",
	} {
		if got, err := normalEndpoint(given); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", given, got, err, want)
		}
	}
	for _, given := range []string{"", "http://pve.example:8006", "https://", "https://user:secret@pve.example"} {
		got, err := normalEndpoint(given)
		if err == nil {
			t.Errorf("%q: got %q without an error", given, got)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error tells the password: %v", given, err)
		}
	}
}

func TestVersionsAreRead(t *testing.T) {
	for text, want := range map[string]Version{"9.2.11": {9, 2}, "8.4-1": {8, 4}, "8.4.14": {8, 4}, "10.0~rc1": {10, 0}} {
		if got, err := parseVersion(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
	if _, err := parseVersion("nine"); err == nil {
		t.Error("no error for what is no version")
	}
	if !(Version{9, 0}).AtLeast(8, 4) || (Version{8, 3}).AtLeast(8, 4) || !(Version{8, 4}).AtLeast(8, 4) {
		t.Error("versions are compared wrongly")
	}
}

func TestATicketLoginWorksToo(t *testing.T) {
	r := newRig(t)
	c := r.client(func(c *Config) {
		c.TokenID, c.TokenSecret, c.Username, c.Password = "", "", "root@pam", pvesim.RootPassword
	})
	unauthorized := 0
	r.faults.answer = func(_ http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, "/access/ticket") && req.Header.Get("Cookie") == "" {
			unauthorized++
		}
		return false
	}
	made, err := c.EnsureTemplate(t.Context(), r.spec(), "instance", nil, func(Template) {})
	if err != nil || !made.Finished {
		t.Errorf("%+v, %v", made, err)
	}
	if unauthorized > 0 {
		t.Errorf("%d calls were made without a ticket, each of which Proxmox VE holds back for 3 s", unauthorized)
	}
	wrong := r.client(func(c *Config) { c.TokenID, c.TokenSecret, c.Username, c.Password = "", "", "root@pam", "wrong" })
	if _, err := wrong.Version(t.Context()); !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "root@pam") {
		t.Errorf("with a wrong password: %v", err)
	}
}

func TestMarksAreFoundInWhatPeopleWroteAroundThem(t *testing.T) {
	m := mark{Kind: "user", Instance: "i", State: stateMade, Until: 7}
	for _, text := range []string{
		m.String(), m.with("own words", " "), m.with("two\nlines", "\n\n"), "above\n\n" + m.String() + "\n\nbelow\n",
	} {
		got, _, ok := splitMark(text)
		if !ok || got.String() != m.String() {
			t.Errorf("%q: got %+v, %v", text, got, ok)
		}
	}
	if _, rest, _ := splitMark("above\n\n" + m.String() + "\n\nbelow\n"); rest != "above\nbelow" {
		t.Errorf("the rest is %q", rest)
	}
	for _, text := range []string{"", "own words", markPrefix + " no JSON"} {
		if m, rest, ok := splitMark(text); ok || rest != text {
			t.Errorf("%q: got %+v, rest %q", text, m, rest)
		}
	}
}
