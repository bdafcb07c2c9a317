"""The command line ``deconv-ext``: info, check, explain, bench, profile and demo, one module each.

Every command is a function too: ``check.run``, ``bench.run``, ``training.run``, ``demo.run`` and so on.
"""
