// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package kube

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// answering is an API server that knows one namespace and nothing else; down
// says when it answers 503.
func answering(t *testing.T, down func() bool) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
		status := http.StatusNotFound
		switch {
		case down():
			status, body = http.StatusServiceUnavailable, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"etcd is away","reason":"ServiceUnavailable","code":503}`
		case r.URL.Path == "/api":
			status, body = http.StatusOK, `{"kind":"APIVersions","versions":["v1"]}`
		case r.URL.Path == "/apis":
			status, body = http.StatusOK, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`
		case r.URL.Path == "/api/v1":
			status, body = http.StatusOK, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"namespaces","kind":"Namespace","verbs":["get"]},{"name":"secrets","namespaced":true,"kind":"Secret","verbs":["get"]}]}`
		case r.URL.Path == "/api/v1/namespaces/kube-system":
			status, body = http.StatusOK, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"the-uid"}}`
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestClientAnswersPresentAbsentOrUnknown(t *testing.T) {
	isDown := false
	client := answering(t, func() bool { return isDown })

	if uid, err := client.UID(t.Context()); err != nil || uid != "the-uid" {
		t.Errorf("identity is %q, %v", uid, err)
	}
	if _, err := client.Object(t.Context(), "v1", "Secret", "kmgt", "kmgt-kubeconfig"); !IsAbsent(err) {
		t.Errorf("a missing object is not absent: %v", err)
	}
	if _, err := client.Object(t.Context(), "cluster.x-k8s.io/v1beta2", "Cluster", "kmgt", "kmgt"); !IsAbsent(err) {
		t.Errorf("an object of a missing kind is not absent: %v", err)
	}
	isDown = true
	if _, err := client.Object(t.Context(), "v1", "Secret", "kmgt", "kmgt-kubeconfig"); err == nil || IsAbsent(err) {
		t.Errorf("a failing server proves absence: %v", err)
	}
	if _, err := client.UID(t.Context()); err == nil || IsAbsent(err) {
		t.Errorf("a failing server proves absence: %v", err)
	}
}

func TestWaitForAPIStartsAgainAfterABreak(t *testing.T) {
	calls := 0
	client := answering(t, func() bool { calls++; return calls == 2 })
	start := time.Now()
	if err := client.WaitForAPI(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if calls < 4 {
		t.Errorf("it ended after %d answers, in %s", calls, time.Since(start))
	}
}

func TestWaitTellsWhatItSawLast(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	looks := 0
	err := wait(ctx, "the Deployment", 5*time.Millisecond, func(context.Context) (bool, string, error) {
		looks++
		return false, "1 of 2 replicas", nil
	})
	if err == nil || !strings.Contains(err.Error(), "waiting for the Deployment") || !strings.Contains(err.Error(), "1 of 2 replicas") || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	if looks < 2 {
		t.Errorf("looked %d times", looks)
	}
}

func TestWaitEndsAtAFatalError(t *testing.T) {
	cause := errors.New("the Job failed")
	err := Wait(t.Context(), "the Job", func(context.Context) (bool, string, error) { return false, "", Fatal(cause) })
	if !errors.Is(err, cause) {
		t.Errorf("error is %v", err)
	}
}

func TestParseDocuments(t *testing.T) {
	for name, test := range map[string]struct {
		text  string
		names string
		fails string
	}{
		"several documents keep their order": {
			text:  "---\napiVersion: v1\nkind: A\nmetadata: {name: one}\n---\n# only a comment\n---\napiVersion: v1\nkind: B\nmetadata: {name: two}\n",
			names: "one two",
		},
		"a List is taken apart": {
			text:  "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: A, metadata: {name: one}}\n- {apiVersion: v1, kind: B, metadata: {name: two}}\n",
			names: "one two",
		},
		"JSON is read too":                           {text: `{"apiVersion":"v1","kind":"A","metadata":{"name":"one"}}`, names: "one"},
		"nothing is nothing":                         {text: "\n---\n"},
		"a broken document is named and not quoted":  {text: "apiVersion: v1\nkind: A\nmetadata: {name: one}\n---\npassword: [hunter2\n", fails: "document 2"},
		"an object without a kind is refused":        {text: "apiVersion: v1\nmetadata: {name: one}\n", fails: "no kind"},
		"an object without a name is refused":        {text: "apiVersion: v1\nkind: A\n", fails: "no metadata.name"},
		"a List's item without a name is refused":    {text: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: A}\n", fails: "item of the List"},
		"a document that is no mapping is not taken": {text: "- hunter2\n", fails: "document 1"},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := ParseDocuments([]byte(test.text))
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) || strings.Contains(err.Error(), "hunter2") {
					t.Fatalf("error is %v, want one with %q and no content", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, object := range objects {
				names = append(names, object.GetName())
			}
			if strings.Join(names, " ") != test.names {
				t.Errorf("read %v, want %s", names, test.names)
			}
		})
	}
}
