//go:build tools

// Package testbed pins the DNS server of the two-node test cluster.
package testbed

import (
	_ "github.com/coredns/coredns"
)
