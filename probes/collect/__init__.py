"""Passive readers of one node, a folder for each source. They import only model, system and each other."""
