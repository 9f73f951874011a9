// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package proxmox

import (
	"strings"
	"testing"
)

func TestEndpointsThatPeoplePasteWork(t *testing.T) {
	for given, want := range map[string]string{
		"https://pve.example:8006":                          "https://pve.example:8006",
		"https://pve.example:8006/":                         "https://pve.example:8006",
		"https://pve.example:8006/api2/json":                "https://pve.example:8006",
		"https://pve.example:8006/api2/json/":               "https://pve.example:8006",
		"https://pve.example":                               "https://pve.example:8006",
		"pve.example":                                       "https://pve.example:8006",
		"10.0.0.1:443":                                      "https://10.0.0.1:443",
		"https://[fd00::1]":                                 "https://[fd00::1]:8006",
		" https://pve.example:8006/#v1:0 ":                  "https://pve.example:8006",
		"https://pve.example:8006/?console=shell&node=pve1": "https://pve.example:8006",
		"HTTPS://PVE.example:8006/api2/extjs/":              "https://pve.example:8006",
		"pve.example/api2/json":                             "https://pve.example:8006",
		"pve.example:443":                                   "https://pve.example:443",
		"fd00::1":                                           "https://[fd00::1]:8006",
	} {
		if got, err := normalEndpoint(given); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", given, got, err, want)
		}
	}
	for _, given := range []string{
		"", "http://pve.example:8006", "https://", "https://user:secret@pve.example", "https://user:secret@pve.example:x", "https://pve.example/pve/", "pve.example:0",
	} {
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
