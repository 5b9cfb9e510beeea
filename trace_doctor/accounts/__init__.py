"""Accounts: from the analyses of the GPUs to one report without findings.

`assembly` puts together what `gpus` (a row a GPU), `means` (over GPUs), `coverage` and `warnings` say; `metrics` and
`workload` stand below them.
"""
