"""Kernel families for CPUs: computation, weight packing, schedule and the rule when each applies."""
