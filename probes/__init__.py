"""Measures, reaches and judges machines: samples flow from collect over agent and reach to judge."""
