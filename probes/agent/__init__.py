"""The program on every node: samples to stdout, requests from stdin, ends with its caller."""
