//go:build tools

// Package testbed pins the helm that lints, renders and installs the chart in the tests.
package testbed

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
