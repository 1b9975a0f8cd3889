"""A Kubernetes cluster of two real nodes on this machine, for the end-to-end tests.

Each node is a pair of network and mount namespaces with a containerd, a kubelet, a kube-proxy and
a NetworkPolicy firewall of its own; the control plane and the DNS server are processes of the host.
Whatever runs is in one control group, and whatever is written lies below one folder or in the
nodes' own mount namespaces, so killing the group and removing the folder and the bridge undoes all
of it, in whichever state a crash left it. `python -m two_nodes` is what make calls.
"""
