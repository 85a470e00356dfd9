"""The cluster's DNS: names of Services and pods; all other names are forwarded to the machine's servers."""
