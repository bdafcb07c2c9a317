"""The command line ``python -m deconv_ext``: info, check, explain, bench and demo, one module each.

Every command is a function too: ``check.run``, ``bench.run``, ``training.run``, ``demo.run`` and so on.
"""
