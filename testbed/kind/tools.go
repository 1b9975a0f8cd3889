//go:build tools

// Package testbed pins the kind that makes the test cluster where Docker runs.
package testbed

import (
	_ "sigs.k8s.io/kind"
)
