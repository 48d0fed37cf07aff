"""Model hopper parallelism: the order of visits, and the loop that hands out units.

Pure, and tested on simulated clocks and faults.  runs/ of cerebro_plpy uses it.
"""
