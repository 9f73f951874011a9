// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestMergeValues(t *testing.T) {
	for name, test := range map[string]struct {
		documents []string
		want      string
		wrong     string
	}{
		"nothing is an empty mapping":               {nil, `{}`, ""},
		"an empty document changes nothing":         {[]string{"a: 1", "", "# only a comment"}, `{"a":1}`, ""},
		"maps are merged deeply":                    {[]string{"a: {b: 1, c: 2}", "a: {c: 3, d: 4}"}, `{"a":{"b":1,"c":3,"d":4}}`, ""},
		"lists are replaced":                        {[]string{"a: [1, 2]", "a: [3]"}, `{"a":[3]}`, ""},
		"a scalar replaces a map":                   {[]string{"a: {b: 1}", "a: off"}, `{"a":false}`, ""},
		"null stays, to take a chart's default out": {[]string{"a: 1", "a: null"}, `{"a":null}`, ""},
		"JSON is read too":                          {[]string{`{"a": {"b": true}}`}, `{"a":{"b":true}}`, ""},
		"one document between its marks":            {[]string{"# first\n---\na: |\n  --- x\n...\n# only a comment\n---\n"}, `{"a":"--- x\n"}`, ""},
		"several documents in one are refused":      {[]string{"a: 1\n--- # next\nb: hunter2"}, "", "document 1 holds several"},
		"a text at the top is refused":              {[]string{"hunter2"}, "", "document 1"},
		"a list at the top is refused":              {[]string{"a: 1", "- hunter2"}, "", "document 2"},
		"broken YAML is refused":                    {[]string{"a: [hunter2"}, "", "document 1"},
		"a tab is refused with its line":            {[]string{"a:\n\tb: hunter2"}, "", "line 2"},
	} {
		t.Run(name, func(t *testing.T) {
			merged, err := MergeValues(test.documents)
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("got the error %v, want one with %q and no content", err, test.wrong)
				}
				return
			}
			got, marshalErr := json.Marshal(merged)
			if err != nil || marshalErr != nil || string(got) != test.want {
				t.Errorf("got %s, %v, want %s", got, err, test.want)
			}
		})
	}
}

func TestMergeValuesLeavesItsInputAlone(t *testing.T) {
	below, above := map[string]any{"a": map[string]any{"b": 1}}, map[string]any{"a": map[string]any{"c": 2}}
	mergeMaps(below, above)
	if !reflect.DeepEqual(below, map[string]any{"a": map[string]any{"b": 1}}) {
		t.Errorf("the lower values became %v", below)
	}
}

func TestHashValuesIsTheSameAfterARecord(t *testing.T) {
	values, err := MergeValues([]string{"a: 1\nb: {c: 2.5, d: [x, true, null]}\nbig: 1234567890123"})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	var read map[string]any
	if err := json.Unmarshal(stored, &read); err != nil {
		t.Fatal(err)
	}
	if HashValues(values) != HashValues(read) {
		t.Error("values and their record have different digests")
	}
	if HashValues(nil) != HashValues(map[string]any{}) {
		t.Error("no values and empty values have different digests")
	}
	read["a"] = 2
	if HashValues(values) == HashValues(read) {
		t.Error("different values have one digest")
	}
}
