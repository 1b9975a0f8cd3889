module quantfleet.io/testbed/pause

go 1.24.0
