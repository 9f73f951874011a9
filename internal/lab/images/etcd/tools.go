//go:build tools

// Package tools pins the main packages that the lab builds, so that go.mod and
// go.sum cover their whole dependency graphs.
package tools

import (
	_ "go.etcd.io/etcd/v3"
)
