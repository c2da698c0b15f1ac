# `make run` trains the embedded default job, `make test` runs the tests (all of them with
# ARGS=--matrix, those of two minutes with ARGS=--quick); both first make `.venv`, the tests with
# Horovod in it unless HOROVOD=0, and beside it an environment with Airflow unless AIRFLOW=0.
# `make package` packs the environment for a cluster. `make matrix-versions` runs a part of the tests
# in environments of other releases of Python and Spark, `make faults` trainings on three hosts that
# something goes wrong under, `make bench` measures what must not slip (about a quarter of an hour),
# `make fuzz` the fuzz tests for MINUTES. `make gpu-check` holds what PyTorch computes on a GPU against
# the CPU, and measures it. `make compatibility` reads models of this package by other libraries, each in
# an environment of its own. `make test-install` tries installs of single extras by pip. `make azurite` installs a server
# that speaks Azure's Blob Storage for the tests of object stores, by npm. `make generator` installs
# a small language model and a server for it. `make docs` builds the site of the pages.
SHELL := /bin/bash
PYTHON ?= python3.11
# Of another environment beside this one, made by another Python or from another lock.
VENV ?= .venv
LOCK ?= requirements.lock
HOROVOD ?= 1
AIRFLOW ?= 1
TORCH := torch==2.13.0
# Of the build that fits the machines: each one has hashes of its own, so none stands in the lock.
TORCH_HASHES ?=

# The stamp is named after all that the environment is made from: another lock, another stamp. What
# pyproject.toml says to tools, behind the tables of the project, is no part of it.
KEY := $(shell { cat $(LOCK); sed '/^\[tool\./,$$d' pyproject.toml; cat bench/pyproject.toml; echo "$(TORCH) $(CURDIR)"; } | cksum | tr -d " ")
STAMP := $(VENV)/.installed-$(KEY)
MESH_STAMP := $(STAMP)-mesh-$(shell cksum < environment/mesh.lock | tr -d " ")
HOROVOD_KEY := $(shell cat environment/build_horovod.py environment/horovod.lock environment/*.patch | cksum | tr -d " ")
HOROVOD_STAMP := $(STAMP)-horovod-$(HOROVOD_KEY)
ARCHIVE_STAMP := $(STAMP)-classes-$(shell cksum < environment/build_class_archive.py | tr -d " ")
# Airflow wants other versions of what both have, so it lives apart, as it does in production.
AIRFLOW_KEY := $(shell { cat environment/airflow.lock; echo "$(CURDIR)"; } | cksum | tr -d " ")
AIRFLOW_STAMP := .venv-airflow/.installed-$(AIRFLOW_KEY)
AIRFLOW_2_KEY := $(shell { cat environment/airflow-2.lock; echo "$(CURDIR)"; } | cksum | tr -d " ")
AIRFLOW_2_STAMP := .venv-airflow-2/.installed-$(AIRFLOW_2_KEY)
DOCS_KEY := $(shell { cat environment/docs.lock; echo "$(CURDIR)"; } | cksum | tr -d " ")
DOCS_STAMP := .venv-docs/.installed-$(DOCS_KEY)
# Megatron-Core is for few, and a large part of it for GPUs alone: an environment that sees .venv.
MEGATRON_KEY := $(shell { cat environment/megatron.lock; echo "$(KEY)"; } | cksum | tr -d " ")
MEGATRON_STAMP := .venv-megatron/.installed-$(MEGATRON_KEY)
GENERATOR_KEY := $(shell { cat environment/generator.lock environment/small_model.py; echo "$(KEY)"; } | cksum | tr -d " ")
GENERATOR_STAMP := .venv-generator/.installed-$(GENERATOR_KEY)
AZURITE_KEY := $(shell { cat environment/azurite/*.json; echo "$(CURDIR)"; } | cksum | tr -d " ")
AZURITE_STAMP := .azurite/.installed-$(AZURITE_KEY)
IN_VENV := $(VENV)/bin/python
# By uv, where there is one, or by pip; both show what they do.
INSTALL := "$(PYTHON)" environment/install.py
# The two environments are independent: one is downloaded while the other one's Horovod compiles.
# Other goals may rely on the order in which they are named.
ifneq ($(filter test airflow,$(MAKECMDGOALS)),)
ifeq ($(filter-out test airflow environment,$(MAKECMDGOALS)),)
MAKEFLAGS += --jobs=2
endif
endif
# Test files are shared among so many processes, each of which has a cluster of its own, and one more
# without a cluster; see CONTRIBUTING.md. Their order is that of tests/support/suite_order.py.
TESTERS ?= 2
SHARED = --numprocesses $(shell expr $(TESTERS) + 1) --dist loadfile --no-loadscope-reorder

# What `make package` packs: engines, and extras of pyproject.toml beside them (`spark`: Spark itself).
ENGINE ?= tensorflowonspark
ENGINES ?= $(ENGINE)
WITH ?= default-encoder evaluation languages report

.PHONY: run test test-install lint docs environment horovod mesh airflow airflow-2 azurite generator megatron package package-check matrix-versions faults faults-of-stages fuzz scale-check bench gpu-check gpu-packages compatibility
.DELETE_ON_ERROR:

# Compiling Horovod takes minutes, and the default job trains without it.
run: $(STAMP) $(ARCHIVE_STAMP)
	$(VENV)/bin/sentence-pipelines run --config jobs/default.yaml --set run.overwrite=true $(ARGS)

test: environment $(if $(filter 0,$(AIRFLOW)),,airflow)
# Where Python may keep no compiled modules, each of a thousand processes compiles them again.
	PYTHONDONTWRITEBYTECODE= $(IN_VENV) -m pytest $(SHARED) $(ARGS)

# A fresh environment for each of some installs by pip, as users make them, and the README's
# example in it. INSTALLS=torch tries one.
test-install: $(STAMP)
	$(IN_VENV) environment/try_install.py $(INSTALLS)

lint: $(STAMP)
	$(IN_VENV) -m ruff check
	$(IN_VENV) -m ruff format --check
	$(IN_VENV) -m mypy

environment: $(STAMP) $(ARCHIVE_STAMP) $(if $(filter 0,$(HOROVOD)),,$(HOROVOD_STAMP))

airflow: $(AIRFLOW_STAMP)

# The oldest release that the DAGs work in; their tests run in it too where it is installed.
airflow-2: $(AIRFLOW_2_STAMP)

# The pages as a site in build/site. A page that no menu names, and a link or an anchor that leads
# nowhere, end it. It asks the network for nothing once its environment is there.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict $(ARGS)
	@echo "the site is in build/site: python3 -m http.server --directory build/site"

# For the engine of that name, whose tests are skipped elsewhere:
# .venv-megatron/bin/python -m pytest -k megatron
megatron: $(MEGATRON_STAMP)

# Without it, the tests of Azure's store are skipped; all others of object stores need nothing more.
azurite: $(AZURITE_STAMP)

$(AZURITE_STAMP):
	@command -v npm > /dev/null || { echo "error: there is no npm: install it (on Debian npm)" >&2; exit 2; }
	rm -rf $(@D)
	mkdir $(@D)
	cp environment/azurite/*.json $(@D)
	npm ci --prefix $(@D) --omit=optional --no-audit --no-fund
	touch $@

# A language model of 135 million parameters, as a file for its server and as a folder, to try `ask`
# with; see docs/guides/questions.md. Tests that need it are skipped elsewhere.
generator: $(GENERATOR_STAMP)

$(GENERATOR_STAMP): $(STAMP)
	rm -rf $(@D)
	"$(PYTHON)" -m venv $(@D)
	@$(INSTALL) $(@D) --no-deps --require-hashes -r environment/generator.lock
	$(IN_VENV) environment/small_model.py $(@D)
	$(@D)/bin/python -c 'import xllamacpp'
	touch $@

# The stamp is written last, so an installation that was interrupted is gone through again.
$(STAMP):
	@"$(PYTHON)" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
		2>/dev/null || { echo "error: $(PYTHON) is no Python 3.11 or 3.12 with venv:" \
		"install it (on Debian python3.11-venv), or make PYTHON=/path/to/python3.11" >&2; exit 2; }
	rm -f $(VENV)/.installed-*
	"$(PYTHON)" -m venv $(VENV)
	@echo "$(TORCH) $(addprefix --hash=sha256:,$(TORCH_HASHES))" > $(VENV)/torch.txt
	@$(INSTALL) $(VENV) $(if $(TORCH_HASHES),--require-hashes) --no-deps -r $(VENV)/torch.txt
	@$(INSTALL) $(VENV) --require-hashes --no-deps -r $(LOCK)
# A CUDA build of torch does not load without the libraries that it depends on. These have no hashes,
# and pip takes either all that it is given by hash, or nothing.
	@sed '/--hash=/d; s/ \\$$//' $(LOCK) > $(VENV)/constraints.txt
	@$(IN_VENV) -c 'import torch' 2>/dev/null || $(INSTALL) $(VENV) -c $(VENV)/constraints.txt $(TORCH)
	@$(INSTALL) $(VENV) --no-deps --no-build-isolation --editable . --editable ./bench
	touch $@

# Without Horovod, for which the script gives a reason and exit code 3, all else works. It is asked
# each time then: whether something has changed, so that a build can be tried, is for it to say.
$(HOROVOD_STAMP): $(STAMP)
	@rm -f $(STAMP)-horovod-*
	@$(IN_VENV) environment/build_horovod.py && touch $@ || test $$? -eq 3

# Spark starts faster from it. Without it, for which the script gives a reason and exit code 3, all
# works as well.
$(ARCHIVE_STAMP): $(STAMP)
	@rm -f $(STAMP)-classes-*
	@$(IN_VENV) environment/build_class_archive.py && touch $@ || test $$? -eq 3

# The wheel and an environment for a cluster, in dist/; see docs/guides/cluster.md.
package: $(STAMP) $(if $(filter horovod,$(ENGINES)),$(HOROVOD_STAMP))
	$(IN_VENV) environment/build_package.py \
		--engines $(ENGINES) --with $(WITH) --lock $(LOCK)

# Trains from that archive on a standalone cluster whose machines have no Python.
package-check: $(STAMP)
	$(IN_VENV) environment/check_package.py $(ARGS)

# Trainings on three hosts that something goes wrong under; see docs/reference/faults.md. Needs root.
faults: environment
	PYTHONPATH=tests/support $(IN_VENV) -m faults $(ARGS)

# The same for preparing, evaluating, embedding, searching and promoting.
faults-of-stages: environment
	PYTHONPATH=tests/support $(IN_VENV) -m faults.stages $(ARGS)

# Holds the simulation of more workers against hosts with slow links; needs root.
scale-check: environment
	PYTHONPATH=tests/support $(IN_VENV) -m scaling $(ARGS)

# Benchmarks that fail where a figure is beyond its bound; see docs/reference/benchmarks.md.
bench: environment
	$(VENV)/bin/sentence-pipelines benchmark bounds $(ARGS)

# What PyTorch computes on a GPU; see docs/measurements/gpu.md. A machine that is lent for it may have no `.venv`,
# so neither of these makes one.
ANY_PYTHON = $(if $(wildcard $(IN_VENV)),$(IN_VENV),python3)
gpu-check:
	PYTHONPATH=bench $(ANY_PYTHON) -m pipelines_bench.gpu $(ARGS)

# What such a machine lacks though it has PyTorch, in the releases of the lock, for its release of
# Python: a folder to take along.
GPU_PYTHON ?= 3.12
GPU_PACKAGES := annotated-types pydantic pydantic-core tenacity typing-inspection zstandard datasets dill multiprocess
GPU_FOLDER = build/gpu-packages-$(GPU_PYTHON)
gpu-packages:
	rm -rf $(GPU_FOLDER)
	mkdir -p build
	sed '/--hash=/d; s/ \\$$//' $(LOCK) > build/gpu-constraints.txt
	$(ANY_PYTHON) -m pip install --quiet --target $(GPU_FOLDER) -c build/gpu-constraints.txt --no-deps \
		--no-compile --only-binary=:all: --implementation cp --python-version $(GPU_PYTHON) \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
		--platform manylinux2014_x86_64 $(GPU_PACKAGES)
	du -sh $(GPU_FOLDER)

# Files, settings and messages that are damaged in ever other ways; see CONTRIBUTING.md.
MINUTES ?= 10
fuzz: environment
	PYTHONPATH=tests/support $(IN_VENV) -m fuzz_rounds --minutes $(MINUTES) $(ARGS)

# A part of the tests on other releases of Python and Spark; see docs/reference/versions.md.
matrix-versions: environment
	$(IN_VENV) environment/versions.py $(if $(VERSIONS),"$(VERSIONS)")

# Models of this package in other libraries; see docs/reference/compatibility.md. An environment for
# each is downloaded once.
compatibility: $(STAMP)
	PYTHONPATH=environment $(IN_VENV) -m compatibility $(ARGS)

# Mesh TensorFlow, which the engine `mesh` trains with, and nothing else: unmaintained since 2022.
mesh: $(MESH_STAMP)

$(MESH_STAMP): $(STAMP)
	@rm -f $(STAMP)-mesh-*
	@$(INSTALL) $(VENV) --no-deps --require-hashes -r environment/mesh.lock
	touch $@

# Installs or builds it again, though nothing has changed since.
horovod: $(STAMP)
	$(IN_VENV) environment/build_horovod.py --again && touch $(HOROVOD_STAMP)

$(MEGATRON_STAMP): $(STAMP)
	rm -rf $(@D)
	"$(PYTHON)" -m venv $(@D)
# Not by its name alone: what .venv's own files of paths name is to be seen as well.
	$(IN_VENV) -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
	@$(INSTALL) $(@D) --no-deps --require-hashes -r environment/megatron.lock
	printf '#!/bin/sh\nexec "$$(dirname "$$0")/python" -m pipelines "$$@"\n' > $(@D)/bin/sentence-pipelines
	chmod +x $(@D)/bin/sentence-pipelines
	$(@D)/bin/python -c 'import megatron.core, pipelines.engines.megatron.engine'
	$(@D)/bin/sentence-pipelines --version
	touch $@

# The lock of an environment has its name: .venv-airflow, environment/airflow.lock.
$(AIRFLOW_STAMP) $(AIRFLOW_2_STAMP) $(DOCS_STAMP):
	rm -rf $(@D)
	"$(PYTHON)" -m venv $(@D)
	@$(INSTALL) $(@D) --no-deps --require-hashes -r environment/$(patsubst .venv-%,%,$(@D)).lock
	$(@D)/bin/python -m pip --disable-pip-version-check check
	touch $@
