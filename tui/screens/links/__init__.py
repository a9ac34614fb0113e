"""The pane of network ports and PCI links."""
