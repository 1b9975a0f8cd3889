//go:build tools

// Package testbed pins what enforces NetworkPolicy in the two-node test cluster.
package testbed

import (
	_ "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"
)
