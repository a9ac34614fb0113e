"""How jobs get on, from samples alone: who starts, steps, stands still or steps more slowly than it did.

``activity`` says what one rank did between two samples, ``node`` keeps the ranks of a node, ``job`` joins the nodes of
a job and tells its phase, ``odd`` who differs, ``rhythm`` how often it steps, ``droop`` whether that became slower, and
``motions`` is the way in.
"""
