.PHONY: check test lint types imports core-only real samples golden benchmark

check: lint types imports test core-only  ## what CI runs, in the present venv

test:
	pytest -n 2

lint:
	ruff check
	ruff format --check

types:
	mypy

imports:
	lint-imports

core-only:
	.ci/core_only

real:  ## cases and real traces of other people, where ../shared holds them
	python tests/real.py

samples:  ## write sample_traces/*.json.gz and *.sqlite anew
	python -m tests.simulator.samples

golden:  ## write the golden reports of the samples anew
	python -m tests.simulator.golden

benchmark:
	python benchmarks/large_trace.py
